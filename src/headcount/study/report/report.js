"use strict";
/* The page itself: theme, sortable tables, gates over time. */

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children); // strings become text, never HTML
  return made;
}

function dataOf(id) {
  const found = document.getElementById(id);
  return found ? JSON.parse(found.textContent) : null;
}

/* Theme: the system's, until the reader chooses. */
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try { return localStorage.getItem("headcount-theme"); } catch { return null; }
  };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(isDark()));
    button.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    document.dispatchEvent(new Event("headcount:theme"));
  };
  if (stored()) root.dataset.theme = stored();
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("headcount-theme", root.dataset.theme); } catch { /* from a disk */ }
    show();
  });
  system.addEventListener("change", show);
  show();
})();

/* Tables: a click on a heading sorts by it; empty cells stay last. */
function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const value = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
  const filled = rows.map(value).filter((text) => text !== "");
  const numeric = filled.length > 0 && filled.every((text) => !Number.isNaN(Number(text)));
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === "");
    return direction * (numeric ? Number(x) - Number(y) : x.localeCompare(y));
  };
  rows.sort(compare);
  body.append(...rows);
  [...table.tHead.rows[0].cells].forEach((heading, number) => {
    if (number === column) {
      heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    } else {
      heading.removeAttribute("aria-sort");
    }
  });
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("table.sortable th button");
  if (!button) return;
  const heading = button.closest("th");
  const table = heading.closest("table");
  const ascending = heading.getAttribute("aria-sort") === "ascending";
  const first = heading.classList.contains("number") ? -1 : 1; // numbers: the largest first
  const before = heading.getAttribute("aria-sort");
  sortTable(table, heading.cellIndex, before ? (ascending ? -1 : 1) : first);
});

/* What is wider than the screen says that it can be scrolled. */
(() => {
  const look = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      box.classList.toggle("more", box.scrollWidth > box.clientWidth + 2);
    }
  };
  new ResizeObserver(look).observe(document.body);
  document.addEventListener("toggle", look, true);
  look();
})();

/* An address that names a claim opens it. */
(() => {
  const open = () => {
    const named = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (named && named.matches(".claim")) {
      named.open = true;
      named.scrollIntoView({ block: "center" });
    }
  };
  addEventListener("hashchange", open);
  open();
})();

/* On paper everything is open, and closed again afterwards. */
(() => {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".claim:not([open]), .folded:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
})();

/* Gates over time. */
(() => {
  const gates = dataOf("gates-data");
  if (!gates) return;
  const grid = document.getElementById("gates-grid");
  const slider = document.getElementById("gates-time");
  const play = document.getElementById("gates-play");
  const output = document.getElementById("gates-update");
  const rows = new Map();
  const cells = gates.heads.map((head) => {
    const [site, layer] = head.split(".");
    const name = `${site} ${layer}`;
    if (!rows.has(name)) {
      rows.set(name, element("div", { class: "row" }, element("span", {}, name)));
      grid.append(rows.get(name));
    }
    const cell = element("div", { class: "gate" });
    rows.get(name).append(cell);
    return cell;
  });
  const show = () => {
    const time = Number(slider.value);
    cells.forEach((cell, number) => {
      const share = gates.open[time][number];
      cell.style.backgroundColor = `rgba(var(--heat), ${share / 100})`;
      cell.title = `${gates.heads[number]}: open with ${share} %`;
    });
    const open = gates.open[time].reduce((sum, share) => sum + share, 0) / 100;
    output.textContent = `${gates.updates[time]}: ${open.toFixed(1)} heads open on average`;
    slider.setAttribute("aria-valuetext", output.textContent);
  };
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const step = () => {
    if (Number(slider.value) >= Number(slider.max)) { stop(); return; }
    slider.value = Number(slider.value) + 1;
    show();
  };
  play.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
    play.textContent = "Pause";
    timer = setInterval(step, 120);
  });
  slider.max = gates.updates.length - 1;
  slider.addEventListener("input", () => { stop(); show(); });
  document.getElementById("gates").hidden = false;
  show();
})();
