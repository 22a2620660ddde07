// A line chart over time as SVG, with a summary as text for screen readers.

const SPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 120;
const LEFT = 82;
const BOTTOM = 18;

function part(name, attributes, text) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Returns the next round number: 1, 2 or 5 times a power of ten.
function round(number) {
  const size = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 5, 10].map((step) => step * size).find((step) => step >= number);
}

// Draws `points`, which are pairs of seconds and a value. `write` formats a value and `when` formats seconds. The top
// of the axis is rounded after multiplication by `factor`.
export function draw(node, points, { write, when, what, factor = 1, height = HEIGHT }) {
  const width = Math.max(280, Math.round(node.clientWidth || 640));
  const svg = part("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img" });
  if (points.length < 2) {
    svg.setAttribute("aria-label", `${what}: not enough data yet`);
    svg.append(part("text", { x: 4, y: height / 2 }, "Not enough data for a chart yet"));
    node.replaceChildren(svg);
    return;
  }
  const values = points.map(([, value]) => value);
  const most = Math.max(...values);
  const top = most > 0 ? round(most * factor) / factor : 1;
  const [from, to] = [points[0][0], points[points.length - 1][0]];
  const x = (time) => LEFT + ((time - from) / Math.max(to - from, 1e-9)) * (width - LEFT - 6);
  const y = (value) => 6 + (1 - value / top) * (height - BOTTOM - 6);
  for (const share of [0, 0.5, 1]) {
    const at = y(top * share);
    svg.append(part("line", { class: "grid", x1: LEFT, x2: width - 6, y1: at, y2: at }));
    svg.append(part("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, write(top * share)));
  }
  const line = points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  svg.append(part("polygon", { class: "area", points: `${x(from)},${y(0)} ${line} ${x(to)},${y(0)}` }));
  svg.append(part("polyline", { class: "line", points: line }));
  svg.append(part("text", { x: LEFT, y: height - 3 }, when(from)));
  svg.append(part("text", { x: width - 6, y: height - 3, "text-anchor": "end" }, when(to)));
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  svg.setAttribute("aria-label",
    `${what}: ${write(values[values.length - 1])} at the end, ${write(mean)} on average, ${write(most)} at most`);
  node.replaceChildren(svg);
}
