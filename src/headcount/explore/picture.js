/* "Save picture": what is on the page as one SVG with its colours written into it, or as PNG. */

const PAINT = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "font-size", "font-family", "font-weight", "opacity"];

/* A copy of an SVG that looks the same without the page's style sheet. */
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, place) => {
    const style = getComputedStyle(originals[place]);
    for (const name of PAINT) node.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex", "style"]) node.removeAttribute(name);
  });
  return copy;
}

/* Sentence, translation, grids of heads and the chosen head, one below the other. */
function viewPicture(lines, grids, svgs, colours) {
  const [margin, step] = [16, 20];
  const parts = [];
  let y = margin;
  let width = 640;
  for (const line of lines) {
    y += step;
    parts.push(shape("text", { x: margin, y, fill: colours.ink, "font-size": 14, "font-family": "sans-serif" }, line));
    width = Math.max(width, 2 * margin + 7.6 * line.length);
  }
  y += step;
  let x = margin;
  let below = y;
  for (const grid of grids) {
    parts.push(shape("text", { x, y: y + 10, fill: colours.ink, "font-size": 12, "font-family": "sans-serif" }, grid.name));
    for (const cell of grid.cells) {
      const place = { x: x + 18 * cell.index, y: y + 18 + 18 * cell.layer, height: 16 };
      cell.inks.forEach((ink, i) => {
        const part = { x: place.x + (16 * i) / cell.inks.length, width: 16 / cell.inks.length };
        parts.push(shape("rect", { ...place, ...part, fill: ink, "fill-opacity": cell.opacity }));
      });
      const stroke = cell.off ? colours.off : colours.line;
      parts.push(shape("rect", { ...place, width: 16, fill: "none", stroke, "stroke-width": cell.off ? 2 : 1 }));
      if (cell.off) parts.push(shape("path", { d: `M${place.x} ${place.y + 16} l16 -16`, stroke, "stroke-width": 2 }));
      below = Math.max(below, place.y + 24);
    }
    x += Math.max(18 * (1 + Math.max(0, ...grid.cells.map((cell) => cell.index))) + 24, 7.2 * grid.name.length);
  }
  width = Math.max(width, x + margin);
  y = below + step;
  x = margin;
  let tallest = 0;
  for (const svg of svgs) {
    const [, , w, h] = svg.getAttribute("viewBox").split(" ").map(Number);
    const copy = standalone(svg);
    for (const [name, value] of Object.entries({ x, y, width: w, height: h })) copy.setAttribute(name, value);
    parts.push(copy);
    x += w + 24;
    tallest = Math.max(tallest, h);
  }
  width = Math.max(width, x + margin);
  const height = y + tallest + margin;
  const whole = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, xmlns: SVG });
  whole.append(shape("rect", { width, height, fill: colours.ground }), ...parts);
  return whole;
}

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function svgBlob(picture) {
  return new Blob([new XMLSerializer().serializeToString(picture)], { type: "image/svg+xml" });
}

async function pngBlob(picture) {
  const address = URL.createObjectURL(svgBlob(picture));
  try {
    const image = new Image();
    image.src = address;
    await image.decode();
    const canvas = element("canvas", {});
    canvas.width = 2 * image.width;
    canvas.height = 2 * image.height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  } finally {
    URL.revokeObjectURL(address);
  }
}
