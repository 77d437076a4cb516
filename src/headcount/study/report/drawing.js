/* Attention as pictures: small maps on canvases, a large map and lines between words as SVG. */

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/* A token as readers see it: no mark of a word start; a piece inside a word begins with a dot. */
function plainToken(token, place) {
  if (token === "</s>") return "EOS";
  if (token === "<s>") return "START";
  if (token.startsWith("▁")) return token.slice(1) || "▁";
  return place > 0 && /^[\p{L}\p{N}]/u.test(token) ? `·${token}` : token;
}

function shortToken(text) {
  return text.length > 16 ? `${text.slice(0, 15)}…` : text;
}

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/* The weights of a sentence by head: {queries, keys, bytes}, one byte per weight. */
async function unpackWeights(sentence, layers, sites) {
  const [source, target] = [sentence.tokens.length, sentence.target_tokens.length];
  const sizes = { enc: [source, source], dec: [target, target], cross: [target, source] };
  const bytes = await inflate(sentence.weights);
  const weights = new Map();
  let place = 0;
  for (const site of sites) {
    const [queries, keys] = sizes[site];
    layers[site].forEach((indices, layer) => {
      for (const index of indices) {
        const part = bytes.subarray(place, place + queries * keys);
        weights.set(`${site}.${layer}.${index}`, { queries, keys, bytes: part });
        place += queries * keys;
      }
    });
  }
  return weights;
}

/* weights: {queries, keys, bytes}, one byte per weight. */
function drawThumbnail(canvas, weights) {
  canvas.width = weights.keys;
  canvas.height = weights.queries;
  const context = canvas.getContext("2d");
  const image = context.createImageData(weights.keys, weights.queries);
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--heat").split(",");
  const [red, green, blue] = ink.map(Number);
  weights.bytes.forEach((weight, number) => {
    image.data.set([red, green, blue, weight], 4 * number);
  });
  context.putImageData(image, 0, 0);
}

function widest(words) {
  return 7.9 * Math.max(2, ...words.map((word) => word.length)) + 12;
}

/* The map: rows look at columns. `tell` hears what the pointer is on. */
function drawMap(weights, queries, keys, rarest, name, tell) {
  const cell = 24;
  const left = widest(queries);
  const top = 0.9 * widest(keys) + 4;
  const width = left + cell * keys.length + 30;
  const height = top + cell * queries.length + 6;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  svg.style.maxWidth = `${Math.round(1.4 * width)}px`;
  keys.forEach((word, j) => {
    const x = left + cell * (j + 0.6);
    const turn = `translate(${x}, ${top - 6}) rotate(-60)`;
    svg.append(shape("text", { transform: turn, class: rarest.has(j) ? "rarest" : "" }, word));
  });
  queries.forEach((word, i) => {
    const y = top + cell * (i + 0.68);
    const place = { x: left - 8, y, "text-anchor": "end", class: rarest.has(i) ? "rarest" : "" };
    svg.append(shape("text", place, word));
  });
  for (let i = 0; i < queries.length; i += 1) {
    for (let j = 0; j < keys.length; j += 1) {
      const weight = weights.bytes[i * weights.keys + j] / 255;
      const box = { x: left + cell * j, y: top + cell * i, width: cell - 1, height: cell - 1 };
      const drawn = shape("rect", { ...box, class: "cell", "fill-opacity": weight.toFixed(3) });
      drawn.addEventListener("pointerenter", () => {
        tell(`${queries[i]} → ${keys[j]}: ${(100 * weight).toFixed(0)} %`);
      });
      svg.append(drawn);
    }
  }
  const size = { width: cell * keys.length, height: cell * queries.length };
  svg.append(shape("rect", { x: left, y: top, ...size, class: "frame" }));
  return svg;
}

/* Lines: a word at the left looks at words at the right. */
function drawLines(weights, queries, keys, rarest, name, tell) {
  const step = 25;
  const left = widest(queries);
  const gap = 130;
  const width = left + gap + widest(keys);
  const height = step * Math.max(queries.length, keys.length) + 8;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name });
  svg.style.maxWidth = `${Math.round(1.4 * width)}px`;
  const y = (i) => step * (i + 0.5) + 4;
  const lines = queries.map((_, i) => {
    const group = shape("g", {});
    keys.forEach((__, j) => {
      const weight = weights.bytes[i * weights.keys + j] / 255;
      if (weight < 0.02) return;
      const bend = `M${left} ${y(i)} C${left + 60} ${y(i)} ${left + gap - 60} ${y(j)} ${left + gap} ${y(j)}`;
      const ink = { "stroke-opacity": weight.toFixed(3), "stroke-width": (1 + 2.5 * weight).toFixed(2) };
      group.append(shape("path", { d: bend, class: "link", ...ink }));
    });
    return group;
  });
  svg.append(...lines);
  const only = (i) => {
    lines.forEach((group, number) => group.classList.toggle("faded", i !== null && number !== i));
    tell(i === null ? "" : strongest(weights, queries, keys, i));
  };
  queries.forEach((word, i) => {
    const place = { x: left - 8, y: y(i) + 4, "text-anchor": "end", tabindex: 0 };
    const label = strongest(weights, queries, keys, i);
    const kind = `word${rarest.has(i) ? " rarest" : ""}`;
    const text = shape("text", { ...place, class: kind, "aria-label": label }, word);
    text.addEventListener("pointerenter", () => only(i));
    text.addEventListener("pointerleave", () => only(null));
    text.addEventListener("focus", () => only(i));
    text.addEventListener("blur", () => only(null));
    svg.append(text);
  });
  keys.forEach((word, j) => {
    const kind = rarest.has(j) ? "rarest" : "";
    svg.append(shape("text", { x: left + gap + 8, y: y(j) + 4, class: kind }, word));
  });
  return svg;
}

/* Where a word looks, in words: its three largest weights. */
function strongest(weights, queries, keys, i) {
  const row = [...weights.bytes.subarray(i * weights.keys, (i + 1) * weights.keys)];
  const order = row.map((_, j) => j).sort((a, b) => row[b] - row[a]).slice(0, 3);
  const parts = order.map((j) => `${keys[j]} ${Math.round((100 * row[j]) / 255)} %`);
  return `${queries[i]} → ${parts.join(", ")}`;
}
