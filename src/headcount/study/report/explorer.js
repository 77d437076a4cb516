/* The explorer: choose a model, a sentence and a head; weights are unpacked when they are needed. */
(() => {
  const data = dataOf("explorer-data");
  const gallery = document.getElementById("gallery");
  if (!data || !gallery || !data.models.length) return;

  const get = (id) => document.getElementById(id);
  const controls = {};
  for (const id of ["model", "other", "sentence", "site", "layer", "measure", "role", "apart"]) controls[id] = get(id);
  const SITES = Object.keys(data.sites);
  const sentences = new Map(); // model number -> its sentences
  const unpacked = new Map(); // "model sentence" -> weights of every head
  let chosen = null; // the head

  const sentencesOf = (model) => {
    if (!sentences.has(model)) sentences.set(model, dataOf(`attention-${model}`));
    return sentences.get(model);
  };

  /* All heads of a model on a sentence: head -> {queries, keys, bytes}. */
  async function weightsOf(model, number) {
    const name = `${model} ${number}`;
    if (unpacked.has(name)) return unpacked.get(name);
    const found = await unpackWeights(sentencesOf(model)[number], data.models[model].layers, SITES);
    if (unpacked.size > 20) unpacked.clear();
    unpacked.set(name, found);
    return found;
  }

  const model = () => Number(controls.model.value);
  const other = () => (controls.other.value === "" ? null : Number(controls.other.value));
  const rolesOf = (number, head) => data.models[number].roles[head] || [];
  const colourOf = (kind) => data.colours[kind] || data.colours[data.other];
  const headsOf = (number, site) => {
    const layers = data.models[number].layers[site];
    return layers.flatMap((indices, layer) => indices.map((index) => `${site}.${layer}.${index}`));
  };
  const has = (number, head) => {
    const [site, layer, index] = head.split(".");
    return data.models[number].layers[site][Number(layer)].includes(Number(index));
  };
  const valueOf = (number, head, measure) => {
    const { measures, values } = data.models[number];
    const place = measures.indexOf(measure);
    return place < 0 || !values[head] ? null : values[head][place];
  };
  const shown = (value) => {
    if (value === null) return "";
    if (Number.isInteger(value)) return String(value);
    return Math.abs(value) >= 0.01 ? value.toFixed(2) : value.toExponential(0);
  };

  const plainName = (name) => name.replaceAll("_", " ");
  const exact = (value) => (value === null || Number.isInteger(value) ? String(value ?? "") : value.toPrecision(3));

  function fill(select, options, keep) {
    const before = select.options.length ? select.value : null;
    select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
    if (keep && options.some(([value]) => String(value) === before)) select.value = before;
  }

  function fillModels() {
    const names = data.models.map((found, number) => {
      const bleu = found.bleu === null ? "" : `, BLEU ${found.bleu.toFixed(1)}`;
      return [number, `${found.id} (${found.how}${bleu})`];
    });
    fill(controls.model, names);
    fill(controls.other, [["", "no other model"], ...names]);
    fill(controls.site, SITES.map((site) => [site, data.sites[site]]));
  }

  function fillForModel() {
    const list = sentencesOf(model()).map((sentence, number) => [number, sentence.text]);
    fill(controls.sentence, list, true);
    const measures = data.models[model()].measures.map((name) => [name, plainName(name)]);
    fill(controls.measure, [...measures, ["", "number"]], true);
    const kinds = new Set(Object.values(data.models[model()].roles).flat().map((role) => role.kind));
    const layers = data.models[model()].layers[controls.site.value].map((_, layer) => [layer, String(layer)]);
    fill(controls.layer, [["", "all"], ...layers], true);
    const roles = [["", "all heads"], ...[...kinds].sort().map((kind) => [kind, kind]), ["none", "no role"]];
    fill(controls.role, roles, true);
  }

  /* Heads of the chosen site that have the chosen role, in the chosen order. */
  function chosenHeads() {
    const role = controls.role.value;
    const layer = controls.layer.value;
    const wanted = headsOf(model(), controls.site.value).filter((head) => {
      if (layer !== "" && head.split(".")[1] !== layer) return false;
      const roles = rolesOf(model(), head);
      return role === "" || (role === "none" ? !roles.length : roles.some((found) => found.kind === role));
    });
    const measure = controls.measure.value;
    if (!measure) return wanted;
    const value = (head) => valueOf(model(), head, measure) ?? -Infinity;
    return wanted.slice().sort((a, b) => value(b) - value(a));
  }

  function headButton(head, weights) {
    const roles = rolesOf(model(), head);
    const gone = other() !== null && !has(other(), head);
    const measure = controls.measure.value;
    const value = measure ? shown(valueOf(model(), head, measure)) : "";
    const stripes = element("div", { class: "roles" });
    for (const kind of new Set(roles.map((role) => role.kind))) {
      const stripe = element("span", {});
      stripe.style.backgroundColor = colourOf(kind);
      stripes.append(stripe);
    }
    const canvas = element("canvas", { "aria-hidden": "true" });
    drawThumbnail(canvas, weights);
    const names = roles.map((role) => role.label);
    const caption = gone ? "pruned there" : names.join(" ");
    const label = [head, roles.map((role) => role.name).join(", "), value && `${measure} ${value}`, gone && "pruned in the other model"];
    const button = element(
      "button",
      { type: "button", class: `head${gone ? " gone" : ""}`, "data-head": head, "aria-label": label.filter(Boolean).join("; ") },
      stripes, canvas, element("b", {}, head, element("span", {}, value)), element("i", {}, caption),
    );
    button.title = label.filter(Boolean).join("\n");
    button.setAttribute("aria-pressed", String(head === chosen));
    return button;
  }

  async function showGallery() {
    const weights = await weightsOf(model(), Number(controls.sentence.value));
    const heads = chosenHeads();
    const groups = new Map();
    for (const head of heads) {
      const name = controls.apart.checked ? `layer ${head.split(".")[1]}` : "all";
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(head);
    }
    const names = [...groups.keys()].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
    const rows = names.map((name) => {
      const buttons = groups.get(name).map((head) => headButton(head, weights.get(head)));
      return element("div", { class: "layer" }, element("span", {}, name), element("div", { class: "heads" }, ...buttons));
    });
    gallery.replaceChildren(...rows);
    get("gallery-empty").hidden = heads.length > 0;
    if (!heads.includes(chosen)) chosen = heads[0] ?? null;
    markChosen();
  }

  /* One head is in the tab order; arrow keys reach the others. */
  function markChosen() {
    for (const button of gallery.querySelectorAll(".head")) {
      const is = button.dataset.head === chosen;
      button.setAttribute("aria-pressed", String(is));
      button.tabIndex = is ? 0 : -1;
    }
  }

  function rarestOf(sentence) {
    const counts = sentence.counts || [];
    const order = counts.map((_, place) => place).sort((a, b) => counts[a] - counts[b]);
    return new Set(order.slice(0, 2));
  }

  function roleChips(number, head) {
    const roles = rolesOf(number, head);
    const items = roles.map((role) => {
      const text = `${role.name}: ${(100 * role.score).toFixed(0)} % (baseline ${(100 * role.baseline).toFixed(0)} %)`;
      const item = element("li", {}, text);
      item.style.borderLeftColor = colourOf(role.kind);
      return item;
    });
    return element("ul", { class: "chips" }, ...(items.length ? items : [element("li", {}, "no role that we can name")]));
  }

  function measureList(number, head) {
    const { measures } = data.models[number];
    const pairs = measures.map((name) => [name, valueOf(number, head, name)]).filter(([, value]) => value !== null);
    const rows = pairs.map(([name, value]) => element("div", {}, element("dt", {}, plainName(name)), element("dd", {}, exact(value))));
    return element("dl", { class: "measures" }, ...rows);
  }

  async function panel(number, head) {
    const found = data.models[number];
    const box = element("article", {}, element("h3", {}, `${head} in ${found.id}`));
    if (!has(number, head)) {
      box.append(element("p", { class: "status" }, `${head} was pruned in this model.`));
      return box;
    }
    const text = sentencesOf(model())[Number(controls.sentence.value)].text;
    const place = sentencesOf(number).findIndex((sentence) => sentence.text === text);
    if (place < 0) {
      box.append(element("p", { class: "status" }, "This model was not run on this sentence."));
      return box;
    }
    const sentence = sentencesOf(number)[place];
    const weights = (await weightsOf(number, place)).get(head);
    const site = head.split(".")[0];
    const source = sentence.tokens.map((token, at) => shortToken(plainToken(token, at)));
    const target = sentence.target_tokens.map((token, at) => shortToken(plainToken(token, at)));
    const queries = site === "enc" ? source : target;
    const keys = site === "dec" ? target : source;
    const rarest = site === "enc" ? rarestOf(sentence) : new Set();
    const status = element("p", { class: "status", role: "status" });
    const tell = (words) => { status.textContent = words; };
    const about = `attention of ${head} in ${found.id}`;
    const pictures = element("div", { class: "pictures" });
    pictures.append(
      drawMap(weights, queries, keys, rarest, `Map: ${about}; rows look at columns`, tell),
      drawLines(weights, queries, keys, rarest, `Lines: ${about}; words at the left look at words at the right`, tell),
    );
    box.append(roleChips(number, head), pictures, status, measureList(number, head));
    return box;
  }

  async function showDetail() {
    const detail = get("detail");
    if (!chosen) { detail.replaceChildren(); return; }
    const numbers = other() === null ? [model()] : [model(), other()];
    const panels = await Promise.all(numbers.map((number) => panel(number, chosen)));
    const back = element("button", { type: "button", class: "back" }, "Back to the heads");
    back.addEventListener("click", () => {
      gallery.scrollIntoView({ block: "start" });
      gallery.querySelector('[aria-pressed="true"]')?.focus({ preventScroll: true });
    });
    detail.replaceChildren(element("div", { class: "models" }, ...panels), back);
  }

  function showTranslation() {
    const lines = [];
    const text = sentencesOf(model())[Number(controls.sentence.value)].text;
    for (const number of other() === null ? [model()] : [model(), other()]) {
      const sentence = sentencesOf(number).find((found) => found.text === text);
      if (sentence) lines.push(`${data.models[number].id}: ${sentence.translation}`);
    }
    get("translation").textContent = lines.join("  ·  ");
  }

  function showTable() {
    const { measures } = data.models[model()];
    const names = ["head", "roles", ...measures];
    const headings = names.map((name, column) => {
      const button = element("button", { type: "button" }, plainName(name));
      return element("th", { scope: "col", class: column > 1 ? "number" : null }, button);
    });
    const rows = chosenHeads().map((head, number) => {
      const pick = element("button", { type: "button", "data-head": head }, head);
      const roles = rolesOf(model(), head).map((role) => role.name).join("; ");
      const cells = measures.map((name) => {
        const value = valueOf(model(), head, name);
        return element("td", { class: "number", "data-sort": value ?? "" }, exact(value));
      });
      return element("tr", {}, element("td", { "data-sort": String(number) }, pick), element("td", {}, roles), ...cells);
    });
    const head = element("thead", {}, element("tr", {}, ...headings));
    get("head-table").replaceChildren(head, element("tbody", {}, ...rows));
  }

  let turn = 0;
  async function show() {
    turn += 1;
    const mine = turn;
    try {
      showTranslation();
      await showGallery();
      if (mine !== turn) return; // the reader has chosen something else meanwhile
      showTable();
      await showDetail();
    } catch (error) {
      get("detail").textContent = `The attention data could not be read: ${error.message}`;
    }
  }

  async function pick(head, look) {
    chosen = head;
    markChosen();
    await showDetail();
    // Where the detail is below the heads a reader would not see that anything has changed.
    const below = get("detail").getBoundingClientRect().top > gallery.getBoundingClientRect().bottom - 10;
    if (look && below) get("detail").scrollIntoView({ block: "start" });
  }

  gallery.addEventListener("click", (event) => {
    const button = event.target.closest(".head");
    if (button) pick(button.dataset.head, true);
  });
  gallery.addEventListener("keydown", (event) => {
    const buttons = [...gallery.querySelectorAll(".head")];
    const at = buttons.indexOf(event.target.closest(".head"));
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const goal = { Home: 0, End: buttons.length - 1 }[event.key] ?? at + (steps[event.key] ?? 0);
    if (at < 0 || goal === at || !buttons[goal]) return;
    event.preventDefault();
    pick(buttons[goal].dataset.head);
    buttons[goal].focus();
  });
  get("head-table").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-head]");
    if (!button) return;
    pick(button.dataset.head, false);
    get("detail").scrollIntoView({ block: "nearest" });
  });
  get("explorer-controls").addEventListener("submit", (event) => event.preventDefault());
  get("explorer-controls").addEventListener("change", (event) => {
    if (event.target === controls.model || event.target === controls.site) fillForModel();
    show();
  });
  document.addEventListener("headcount:theme", () => { showGallery(); });

  fillModels();
  fillForModel();
  show();
})();
