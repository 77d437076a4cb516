/* The live page: its state, which lives in the address, and what it asks the server. */
(async () => {
  const get = (id) => document.getElementById(id);
  const token = new URLSearchParams(location.search).get("token");
  const page = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const headers = token ? { "x-headcount-token": token } : {};
  const response = await fetch("/api/about", { headers });
  const data = await response.json();
  if (!response.ok) { get("sentence-error").textContent = data.error; return; }
  const models = new Map(data.models.map((about) => [about.name, about]));

  const state = { model: data.models[0].name, other: "", text: data.sentences[0] || "", off: new Set(), head: "", colour: "relevance", step: 0 };
  /* Answers by kind and model: what is on the screen now. */
  const shown = { full: null, switched: null, beside: null, attention: null, attentionBeside: null, relevance: null };
  const about = () => models.get(state.model);
  const headsOf = (model) => Object.entries(model.layers).flatMap(([site, layers]) =>
    layers.flatMap((indices, layer) => indices.map((index) => `${site}.${layer}.${index}`)));

  /* The address: everything a colleague needs to see the same. */
  function writeAddress() {
    const parts = new URLSearchParams({ model: state.model, text: state.text, colour: state.colour, head: state.head });
    if (state.other) parts.set("other", state.other);
    if (state.off.size) parts.set("off", [...state.off].join(","));
    if (state.step) parts.set("step", state.step);
    history.replaceState(null, "", `#${parts}`);
  }

  function readAddress() {
    const parts = new URLSearchParams(location.hash.slice(1));
    if (models.has(parts.get("model"))) state.model = parts.get("model");
    state.other = models.has(parts.get("other")) ? parts.get("other") : "";
    if (parts.has("text")) state.text = parts.get("text").slice(0, data.limits.characters);
    const heads = new Set(headsOf(about()));
    state.off = new Set((parts.get("off") || "").split(",").filter((head) => heads.has(head)));
    state.head = heads.has(parts.get("head")) ? parts.get("head") : headsOf(about())[0];
    state.colour = parts.get("colour") || "relevance";
    state.step = Math.max(0, Number.parseInt(parts.get("step"), 10) || 0);
  }

  /* Requests: a newer one of the same kind overtakes an older one. */
  const turns = new Map();
  const running = new Map();
  let busy = 0;

  async function ask(kind, model, off, slot) {
    const turn = (turns.get(slot) || 0) + 1;
    turns.set(slot, turn);
    running.get(slot)?.abort();
    const abort = new AbortController();
    running.set(slot, abort);
    busy += 1;
    setTimeout(() => { get("busy").hidden = busy === 0; }, 150);
    try {
      const answer = await fetch(`/api/${kind}`, {
        method: "POST",
        headers: { ...headers, "content-type": "application/json" },
        body: JSON.stringify({ page: `${page}-${slot}`, turn, model, text: state.text, off }),
        signal: abort.signal,
      });
      const value = await answer.json();
      if (turns.get(slot) !== turn || answer.status === 409) return null;
      if (!answer.ok) throw new Error(value.error);
      return value;
    } catch (error) {
      if (error.name === "AbortError") return null;
      throw error;
    } finally {
      busy -= 1;
      if (!busy) get("busy").hidden = true;
    }
  }

  function fail(message) {
    get("sentence-error").textContent = message;
    get("sentence").setAttribute("aria-invalid", String(Boolean(message)));
  }

  /* A new sentence or model: everything is asked again. */
  async function newSentence() {
    for (const name of Object.keys(shown)) shown[name] = null;
    try {
      const [full, beside] = await Promise.all([
        ask("translation", state.model, [], "full"),
        state.other ? ask("translation", state.other, [], "beside") : null,
      ]);
      if (!full) return;
      fail("");
      shown.full = full;
      shown.beside = beside;
      await newHeads();
      if (state.other) {
        const attention = await ask("attention", state.other, [], "attention-beside");
        if (attention) shown.attentionBeside = { answer: attention, weights: await unpackWeights(attention, models.get(state.other).layers, Object.keys(data.sites)) };
        showHead();
      }
    } catch (error) { fail(error.message); }
  }

  /* Heads were switched: first the words, then attention, then relevance. */
  async function newHeads() {
    const off = [...state.off];
    writeAddress();
    try {
      const switched = off.length ? await ask("translation", state.model, off, "switched") : null;
      if (off.length && !switched) return;
      shown.switched = switched;
      showTranslations();
      const attention = await ask("attention", state.model, off, "attention");
      if (!attention) return;
      shown.attention = { answer: attention, weights: await unpackWeights(attention, about().layers, Object.keys(data.sites)) };
      showHead();
      if (state.colour === "confidence") showGrids();
      if (!about().predicts) return;
      const relevance = await ask("relevance", state.model, off, "relevance");
      if (!relevance) return;
      shown.relevance = relevance;
      showSteps();
      showGrids();
    } catch (error) { fail(error.message); }
  }

  function showTranslations() {
    const rows = [];
    if (shown.full) rows.push(translationRow(state.model, shown.full, null));
    if (shown.switched) rows.push(translationRow(`without ${state.off.size} head${state.off.size === 1 ? "" : "s"}`, shown.switched, shown.full));
    if (shown.beside) rows.push(translationRow(state.other, shown.beside, shown.full));
    get("translations").replaceChildren(...rows);
  }

  function values() {
    if (state.colour === "relevance") return shown.relevance ? shown.relevance.heads : {};
    if (state.colour === "step") {
      const steps = shown.relevance ? Object.entries(shown.relevance.by_step) : [];
      return Object.fromEntries(steps.map(([head, shares]) => [head, shares[state.step]]));
    }
    if (state.colour === "confidence") return shown.attention ? shown.attention.answer.confidence : {};
    return about().columns[state.colour.replace(/^column /, "")] || {};
  }

  const colourName = () => ({ step: "relevance at this step", role: "role" })[state.colour] || state.colour.replace(/^column /, "").replaceAll("_", " ");

  function painter() {
    const paint = headColours(state.colour === "role" ? "role" : colourName(), values(), about().roles, data.colours, data.other);
    return (head) => (state.off.has(head) && state.colour !== "role" ? { ...paint(head), fill: "transparent", share: 0 } : paint(head));
  }

  function showGrids() {
    if (get("grids").dataset.model !== state.model) {
      get("grids").replaceChildren(...headGrids(about(), data.sites));
      get("grids").dataset.model = state.model;
    }
    paintGrids(get("grids"), painter(), state);
    const names = [...state.off];
    const listed = names.length > 12 ? `${names.slice(0, 12).join(", ")} and ${names.length - 12} more` : names.join(", ");
    get("off-line").textContent = names.length ? `Switched off: ${listed}.` : "All heads are on.";
    showLegend();
    get("switch").textContent = state.off.has(state.head) ? "Switch on" : "Switch off";
  }

  function showLegend() {
    const legend = get("legend");
    if (state.colour === "role") {
      const kinds = new Set(Object.values(about().roles).flat().map((role) => role.kind));
      const items = [...kinds, data.other].map((kind) => {
        const patch = element("i", { "aria-hidden": "true" });
        patch.style.background = data.colours[kind];
        return element("span", {}, patch, kind === data.other ? "no role" : kind);
      });
      legend.replaceChildren(...items);
      return;
    }
    const numbers = Object.values(values()).filter((value) => value !== null).map(Math.abs);
    const largest = numbers.length ? Number(Math.max(...numbers).toPrecision(2)) : 0;
    const ramp = element("i", { class: "ramp", "aria-hidden": "true" });
    legend.replaceChildren(element("span", {}, `${colourName()}: 0`), ramp, element("span", {}, String(largest)));
  }

  function showSteps() {
    const relevance = shown.relevance;
    if (!relevance) return;
    state.step = Math.min(state.step, relevance.steps.length - 1);
    get("step").max = relevance.steps.length - 1;
    get("step").value = state.step;
    const name = stepName(relevance, state.step);
    get("step-name").textContent = name;
    get("step").setAttribute("aria-valuetext", name);
    get("strips").replaceChildren(...stepStrips(relevance, state.step));
  }

  function showHead() {
    const panels = [];
    if (shown.attention) panels.push(headPanel(about(), state.head, shown.attention.answer, shown.attention.weights, state.off.has(state.head)));
    if (shown.attentionBeside) panels.push(headPanel(models.get(state.other), state.head, shown.attentionBeside.answer, shown.attentionBeside.weights, false));
    get("detail").replaceChildren(element("div", { class: "models" }, ...panels));
  }

  function goToStep(step) {
    if (!shown.relevance) return;
    state.step = Math.max(0, Math.min(shown.relevance.steps.length - 1, step));
    showSteps();
    if (state.colour === "step") showGrids();
    writeAddress();
  }

  function choose(head) {
    state.head = head;
    writeAddress();
    showGrids();
    showHead();
  }

  function switchHeads(heads, off) {
    for (const head of heads) {
      if (off) state.off.add(head); else state.off.delete(head);
    }
    showGrids();
    newHeads();
  }
  const toggle = (heads) => switchHeads(heads, !heads.every((head) => state.off.has(head)));
  const layerOf = (name) => headsOf(about()).filter((head) => head.startsWith(`${name}.`));

  function fill(select, options, value) {
    select.replaceChildren(...options.map(([key, text]) => element("option", { value: key }, text)));
    select.value = value;
    if (select.selectedIndex < 0) select.selectedIndex = 0;
  }

  function fillControls() {
    const names = [...models.keys()].map((name) => [name, name]);
    fill(get("model"), names, state.model);
    fill(get("other"), [["", "no other model"], ...names.filter(([name]) => name !== state.model)], state.other);
    state.other = get("other").value;
    fill(get("pick"), [["", "a sentence …"], ...data.sentences.map((text, i) => [i, text])], "");
    const columns = Object.keys(about().columns).map((name) => [`column ${name}`, name.replaceAll("_", " ")]);
    const roles = Object.keys(about().roles).length ? [["role", "role"]] : [];
    const relevance = about().predicts ? [["relevance", "relevance in this sentence"], ["step", "relevance at this step"]] : [];
    fill(get("colour"), [...relevance, ["confidence", "confidence in this sentence"], ...roles, ...columns], state.colour);
    state.colour = get("colour").value;
    const kinds = [...new Set(Object.values(about().roles).flat().map((role) => role.kind))];
    fill(get("role"), [["", kinds.length ? "choose a role" : "no roles are named"], ...kinds.map((kind) => [kind, kind]), ...(kinds.length ? [["none", "no role"]] : [])], "");
    get("role").disabled = !kinds.length;
    get("translation-title").textContent = about().translates ? "Translation" : "Prediction";
    for (const id of ["translation-title", "step-title"]) get(id).parentElement.hidden = !about().predicts;
    get("sentence").value = state.text;
    get("sentence").maxLength = data.limits.characters;
  }

  let typing = null;
  function useText(text) {
    clearTimeout(typing);
    state.text = text;
    state.step = 0;
    writeAddress();
    if (!text.trim()) { fail("The text is empty. Type a sentence."); return; }
    newSentence();
  }

  function changeModel() {
    state.model = get("model").value;
    state.other = get("other").value === state.model ? "" : get("other").value;
    const heads = new Set(headsOf(about()));
    state.off = new Set([...state.off].filter((head) => heads.has(head)));
    if (!heads.has(state.head)) state.head = headsOf(about())[0];
    fillControls();
    showGrids();
    newSentence();
  }

  get("ask").addEventListener("submit", (event) => { event.preventDefault(); useText(get("sentence").value); });
  get("sentence").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => useText(get("sentence").value), 300);
  });
  get("pick").addEventListener("change", () => {
    if (get("pick").value === "") return;
    get("sentence").value = data.sentences[Number(get("pick").value)];
    useText(get("sentence").value);
  });
  get("model").addEventListener("change", changeModel);
  get("other").addEventListener("change", changeModel);
  get("colour").addEventListener("change", () => { state.colour = get("colour").value; writeAddress(); showGrids(); });
  get("role").addEventListener("change", () => {
    const kind = get("role").value;
    if (!kind) return;
    const own = (head) => about().roles[head] || [];
    toggle(headsOf(about()).filter((head) => (kind === "none" ? !own(head).length : own(head).some((role) => role.kind === kind))));
    get("role").value = "";
  });
  get("below").addEventListener("input", () => {
    const limit = Number(get("below").value);
    get("below-value").textContent = limit ? `${limit} %` : "none";
  });
  get("below").addEventListener("change", () => {
    if (!shown.relevance) return;
    const limit = Number(get("below").value) / 100;
    state.off = new Set(headsOf(about()).filter((head) => (shown.relevance.heads[head] ?? 1) < limit));
    showGrids();
    newHeads();
  });
  get("all-on").addEventListener("click", () => {
    get("below").value = 0;
    get("below-value").textContent = "none";
    switchHeads([...state.off], false);
  });
  get("switch").addEventListener("click", () => toggle([state.head]));
  get("grids").addEventListener("click", (event) => {
    const layer = event.target.closest("[data-layer]");
    if (layer) { toggle(layerOf(layer.dataset.layer)); return; }
    const cell = event.target.closest("[data-head]");
    if (!cell) return;
    const switches = event.shiftKey || document.querySelector("[name=click]:checked").value === "switch";
    if (switches) { state.head = cell.dataset.head; toggle([cell.dataset.head]); } else choose(cell.dataset.head);
  });
  get("grids").addEventListener("keydown", (event) => {
    const cell = event.target.closest("[data-head]");
    if (!cell) return;
    const [site, layer, index] = cell.dataset.head.split(".");
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "x") toggle([cell.dataset.head]);
    else if (event.key === "l") toggle(layerOf(`${site}.${layer}`));
    else if (event.key === "Home" || event.key === "End") {
      const cells = [...get("grids").querySelectorAll("[data-head]")];
      moveTo(cells.at(event.key === "Home" ? 0 : -1));
    } else if (moves[event.key]) {
      event.preventDefault();
      moveTo(neighbour(site, Number(layer), Number(index), ...moves[event.key]));
    }
  });
  function moveTo(cell) {
    if (!cell) return;
    choose(cell.dataset.head);
    cell.focus();
  }
  /* The next head in a direction; pruned ones are skipped, and the next site follows the last head. */
  function neighbour(site, layer, index, down, right) {
    for (let i = 1; i < 64; i += 1) {
      const cell = get("grids").querySelector(`[data-head="${site}.${layer + i * down}.${index + i * right}"]`);
      if (cell) return cell;
    }
    const cells = [...get("grids").querySelectorAll("[data-head]")];
    const here = cells.findIndex((cell) => cell.dataset.head === `${site}.${layer}.${index}`);
    return cells[here + (right || down)];
  }
  get("step").addEventListener("input", () => goToStep(Number(get("step").value)));
  get("step-back").addEventListener("click", () => goToStep(state.step - 1));
  get("step-on").addEventListener("click", () => goToStep(state.step + 1));
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; get("play").textContent = "Play"; };
  get("play").addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (!shown.relevance) return;
    if (state.step === shown.relevance.steps.length - 1) goToStep(0);
    get("play").textContent = "Pause";
    timer = setInterval(() => {
      goToStep(state.step + 1);
      if (!shown.relevance || state.step === shown.relevance.steps.length - 1) stop();
    }, 900);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input[type=text], select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === ",") goToStep(state.step - 1);
    else if (event.key === ".") goToStep(state.step + 1);
    else if (event.key === "a" && state.off.size) switchHeads([...state.off], false);
    else if (event.key === "/") { event.preventDefault(); get("sentence").focus(); }
  });
  get("help-button").addEventListener("click", () => {
    get("help").hidden = !get("help").hidden;
    get("help-button").setAttribute("aria-expanded", String(!get("help").hidden));
  });

  function picture() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const paint = painter();
    const heat = `rgb(${colour("--heat")})`;
    const grids = Object.entries(data.sites).map(([site, name]) => ({
      name,
      cells: headsOf(about()).filter((head) => head.startsWith(`${site}.`)).map((head) => {
        const [, layer, index] = head.split(".").map(Number);
        const { inks, share } = paint(head);
        return { layer, index, inks: inks || [heat], opacity: inks ? 1 : (share ?? 0).toFixed(3), off: state.off.has(head) };
      }),
    })).filter((grid) => grid.cells.length);
    const rows = [[state.model, shown.full], [`without ${[...state.off].join(", ")}`, shown.switched], [state.other, shown.beside]];
    const lines = [state.text, ...rows.filter(([, answer]) => answer).map(([name, answer]) => `${name}: ${answer.translation}  (${answer.log_probability.toFixed(2)})`), `heads by ${colourName()}; below: ${state.head}`];
    const colours = { ink: colour("--ink"), ground: colour("--ground"), line: colour("--line"), off: colour("--fails") };
    return viewPicture(lines, grids, [...get("detail").querySelectorAll("svg")], colours);
  }
  get("save-svg").addEventListener("click", () => download(svgBlob(picture()), "heads.svg"));
  get("save-png").addEventListener("click", async () => download(await pngBlob(picture()), "heads.png"));

  function start() {
    readAddress();
    fillControls();
    showGrids();
    if (state.text.trim()) newSentence(); else fail("Type a sentence.");
  }
  addEventListener("hashchange", start);
  start();
})();
