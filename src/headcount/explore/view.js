/* What the live page shows, drawn from data: translations, grids of heads, steps, one head. */

/* Pieces to words: {text, log} with the log-probability of the word's pieces summed. */
function wordsOf(tokens, logs) {
  const words = [];
  tokens.forEach((token, place) => {
    const log = logs[place] ?? 0;
    const begins = token.startsWith("▁") || token === "</s>" || !words.length;
    if (begins) words.push({ text: token.startsWith("▁") ? token.slice(1) : plainToken(token, 0), log });
    else {
      words[words.length - 1].text += token;
      words[words.length - 1].log += log;
    }
  });
  return words;
}

/* Which words of `now` are not in the longest common subsequence with `before`. */
function changedWords(before, now) {
  const size = Array.from({ length: before.length + 1 }, () => new Array(now.length + 1).fill(0));
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      size[i][j] = before[i] === now[j] ? size[i + 1][j + 1] + 1 : Math.max(size[i + 1][j], size[i][j + 1]);
    }
  }
  const changed = new Set();
  let [i, j] = [0, 0];
  while (j < now.length) {
    if (i < before.length && before[i] === now[j]) { i += 1; j += 1; }
    else if (i < before.length && size[i + 1][j] >= size[i][j + 1]) i += 1;
    else { changed.add(j); j += 1; }
  }
  return changed;
}

/* One translation as a row of words; `before` is what it is compared with. */
function translationRow(label, answer, before, step) {
  const words = wordsOf(answer.tokens, answer.log_probabilities);
  const changed = before
    ? changedWords(wordsOf(before.tokens, []).map((word) => word.text), words.map((word) => word.text))
    : new Set();
  const items = words.map((word, place) => {
    const name = changed.has(place) ? "word changed" : "word";
    const log = element("small", {}, word.log.toFixed(2));
    return element("span", { class: name }, changed.has(place) ? element("mark", {}, word.text) : word.text, log);
  });
  const change = before ? answer.log_probability - before.log_probability : null;
  const same = before && !changed.size && words.length === wordsOf(before.tokens, []).length;
  const total = element("span", { class: "total" }, `log-probability ${answer.log_probability.toFixed(2)}`);
  if (change !== null) total.append(` (${change >= 0 ? "+" : "−"}${Math.abs(change).toFixed(2)}${same ? ", same words" : ""})`);
  return element("div", { class: "translation-row" }, element("span", { class: "who" }, label), element("p", { class: "words" }, ...items), total);
}

const COLOUR_FLOOR = 0.04;

function heat(share) {
  return `rgba(var(--heat), ${Math.max(COLOUR_FLOOR, Math.min(1, share)).toFixed(3)})`;
}

/* What fills a head's cell: a colour, and its value in words. */
function headColours(colour, values, roles, colours, other) {
  if (colour === "role") {
    return (head) => {
      const kinds = [...new Set((roles[head] || []).map((role) => role.kind))];
      const inks = (kinds.length ? kinds : [other]).map((kind) => colours[kind] || colours[other]);
      const parts = inks.map((ink, i) => `${ink} ${(100 * i) / inks.length}% ${(100 * (i + 1)) / inks.length}%`);
      const names = (roles[head] || []).map((role) => role.name).join(", ");
      return { fill: `linear-gradient(90deg, ${parts.join(", ")})`, inks, words: names || "no role" };
    };
  }
  const numbers = Object.values(values).filter((value) => value !== null).map(Math.abs);
  const largest = Math.max(1e-9, ...numbers);
  return (head) => {
    const value = values[head];
    if (value === null || value === undefined) return { fill: "transparent", share: 0, words: "no value" };
    return { fill: heat(Math.abs(value) / largest), share: Math.abs(value) / largest, words: `${colour} ${Number(value.toPrecision(3))}` };
  };
}

/* Grids of layers by heads, one per site. Row names switch whole layers. */
function headGrids(about, sites) {
  return Object.entries(sites).filter(([site]) => about.layers[site].length).map(([site, name]) => {
    const columns = 1 + Math.max(0, ...about.layers[site].flat());
    const top = element("div", { class: "grid-row names", "aria-hidden": "true" }, element("span", {}, ""));
    for (let index = 0; index < columns; index += 1) top.append(element("span", {}, String(index)));
    const rows = about.layers[site].map((indices, layer) => {
      const label = element(
        "button",
        { type: "button", class: "layer-name", "data-layer": `${site}.${layer}`, "aria-label": `${name}, layer ${layer}: switch all heads off or on` },
        String(layer),
      );
      label.disabled = !indices.length;
      const row = element("div", { class: "grid-row" }, label);
      for (let index = 0; index < columns; index += 1) {
        const head = `${site}.${layer}.${index}`;
        const cell = indices.includes(index)
          ? element("button", { type: "button", class: "cell", "data-head": head })
          : element("span", { class: "cell gone", title: `${head} was pruned` });
        row.append(cell);
      }
      return row;
    });
    return element("div", { class: "grid", role: "group", "aria-label": name }, element("h3", {}, name), top, ...rows);
  });
}

/* Colours and marks of the cells as they are now; the cells themselves stay, and so does the focus. */
function paintGrids(grids, paint, state) {
  for (const cell of grids.querySelectorAll("[data-head]")) {
    const { head } = cell.dataset;
    const painted = paint(head);
    const off = state.off.has(head);
    const label = `${head}, ${painted.words}${off ? ", switched off" : ""}`;
    cell.classList.toggle("off", off);
    cell.setAttribute("aria-label", label);
    cell.setAttribute("aria-pressed", String(head === state.head));
    cell.tabIndex = head === state.head ? 0 : -1;
    cell.title = label;
    cell.style.background = painted.fill;
  }
  for (const label of grids.querySelectorAll("[data-layer]")) {
    const cells = [...label.parentElement.querySelectorAll("[data-head]")];
    const off = cells.length > 0 && cells.every((cell) => state.off.has(cell.dataset.head));
    label.setAttribute("aria-pressed", String(off));
  }
}

/* Tokens with bars for relevance: blue for, red against. */
function tokenStrip(name, tokens, values, largest) {
  const items = tokens.map((token, place) => {
    const value = values[place] ?? 0;
    const bar = element("i", { "aria-hidden": "true" });
    bar.style.height = `${(100 * Math.min(1, Math.abs(value) / largest)).toFixed(1)}%`;
    bar.className = value < 0 ? "against" : "for";
    const text = plainToken(token, place);
    return element("li", { title: `${text}: ${value.toFixed(3)}`, "data-value": value }, element("span", { class: "bar-box" }, bar), element("b", {}, text), element("small", {}, value.toFixed(2)));
  });
  return element("div", { class: "strip" }, element("h3", {}, name), element("ol", {}, ...items));
}

function stepStrips(relevance, step) {
  const [source, target] = [relevance.source[step], relevance.target[step].slice(0, step + 1)];
  const largest = Math.max(1e-9, ...source.map(Math.abs), ...target.map(Math.abs));
  const share = relevance.contribution[step];
  const written = relevance.target_tokens.length;  // nothing, in an encoder alone
  const parts = [
    tokenStrip("From the source", relevance.tokens, source, largest),
    ...(written ? [tokenStrip("From what is already written", relevance.target_tokens.slice(0, step + 1), target, largest)] : []),
  ];
  const meter = element("p", { class: "share" }, share === null || !written ? "" : `Source contribution: ${Math.round(100 * share)} %`);
  const top = Object.entries(relevance.by_step).map(([head, values]) => [head, values[step]]).filter(([, value]) => value !== null);
  top.sort((a, b) => b[1] - a[1]);
  const heads = top.slice(0, 5).map(([head, value]) => `${head} ${Math.round(100 * value)} %`).join(", ");
  return [...parts, meter, element("p", { class: "note" }, `Most relevant heads of their layers: ${heads}.`)];
}

function stepName(relevance, step) {
  const name = plainToken(relevance.steps[step], 1);
  const top = plainToken(relevance.predicted[step], 1);
  return `${step + 1} of ${relevance.steps.length}: ${name}${top === name ? "" : ` (most probable: ${top})`}`;
}

/* One head of one model: its attention as a map and as lines. */
function headPanel(about, head, answer, weights, off) {
  const box = element("article", {}, element("h3", {}, `${head} in ${about.name}${off ? " (switched off)" : ""}`));
  const own = weights.get(head);
  if (!own) {
    box.append(element("p", { class: "status" }, `This model has no head ${head}.`));
    return box;
  }
  const site = head.split(".")[0];
  const source = answer.tokens.map((token, at) => shortToken(plainToken(token, at)));
  const target = answer.target_tokens.map((token, at) => shortToken(plainToken(token, at)));
  const queries = site === "enc" ? source : target;
  const keys = site === "dec" ? target : source;
  const status = element("p", { class: "status", role: "status" });
  const tell = (words) => { status.textContent = words; };
  const named = `attention of ${head} in ${about.name}`;
  const pictures = element("div", { class: "pictures" });
  pictures.append(
    drawMap(own, queries, keys, new Set(), `Map: ${named}; rows look at columns`, tell),
    drawLines(own, queries, keys, new Set(), `Lines: ${named}; words at the left look at words at the right`, tell),
  );
  const roles = (about.roles[head] || []).map((role) => element("li", {}, role.name));
  if (roles.length) box.append(element("ul", { class: "chips" }, ...roles));
  box.append(pictures, status);
  return box;
}
