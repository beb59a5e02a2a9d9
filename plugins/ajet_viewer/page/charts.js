// Curves of metrics, one small chart a subject, several runs laid over each other; by step, by time or by tokens.

import { el, number } from "./dom.js";

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// {name: [[step, value], …]} of all numbers in a run's metric rows; a step's last value counts.
export function curvesOf(rows) {
  const curves = {};
  for (const row of rows) {
    for (const [name, value] of Object.entries(row)) {
      if (name === "step" || name === "time" || typeof value !== "number") continue;
      (curves[name] ??= new Map()).set(row.step, value);
    }
  }
  return curves;
}

// What an axis counts, and how a value on it is told.
export const AXES = {
  step: (value) => (Number.isInteger(value) ? String(value) : ""),
  hours: (value) => `${number(value)} h`,
  tokens: (value) => (value >= 1e6 ? `${number(value / 1e6)} M` : value >= 1e3 ? `${number(value / 1e3)} k` : number(value)),
};

// Where each step of a run lies on an axis: Map(step -> hours since its first row, or tokens sampled until then in training); null by step.
export function placesOf(rows, axis) {
  if (axis === "step") return null;
  const places = new Map();
  let tokens = 0, from = null;
  for (const row of rows) {
    if (axis === "hours" && typeof row.time === "number") {
      from ??= row.time;
      places.set(row.step, Math.max(0, row.time - from) / 3600);
    } else if (axis === "tokens") {
      tokens += row["train/sampled_tokens"] ?? 0;
      places.set(row.step, tokens);
    }
  }
  return places;
}

// [[step, what changed], …]: the steps from which on other scorers decided than before.
export function changesOfScorer(rows) {
  const marks = [], before = {};
  for (const row of rows) {
    for (const split of ["train", "validation", "debug"]) {
      const begin = `${split}/scored_by/`;
      const now = Object.keys(row).filter((name) => name.startsWith(begin) && row[name] > 0).map((name) => name.slice(begin.length)).sort().join(", ");
      if (!now) continue;
      if (before[split] !== undefined && before[split] !== now) marks.push([row.step, `${before[split]} → ${now}`]);
      before[split] = now;
    }
  }
  return marks;
}

// The steps from which on another judge scored than before.
export function changesOfJudge(rows) {
  const steps = [];
  let before;
  for (const row of rows) {
    if (typeof row.judge !== "string") continue;
    if (before !== undefined && before !== row.judge) steps.push(row.step);
    before = row.judge;
  }
  return steps;
}

// The points that one judge scored, and those that the next one did, and so on: [Map(step -> value), …].
export function byJudge(points, changes) {
  const parts = [...changes, Infinity].map(() => new Map());
  for (const [step, value] of points) parts[changes.filter((change) => step >= change).length].set(step, value);
  return parts.filter((part) => part.size);
}

function markSteps(plot, marks) {
  const { left, top, width, height } = plot.bbox;
  plot.ctx.save();
  plot.ctx.setLineDash([4, 4]);
  plot.ctx.strokeStyle = css("--ink2");
  plot.ctx.fillStyle = css("--ink2");
  plot.ctx.font = plot.axes[0].font[0];
  plot.ctx.textAlign = "left";
  for (const [place, what] of marks) {
    const at = plot.valToPos(place, "x", true);
    if (at < left || at > left + width) continue;
    plot.ctx.beginPath();
    plot.ctx.moveTo(at, top);
    plot.ctx.lineTo(at, top + height);
    plot.ctx.stroke();
    plot.ctx.fillText(what.slice(0, 60), at + 4, top + 12);
  }
  plot.ctx.restore();
}

function smoothed(values, weight) {
  let mean = null;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean === null ? value : weight * mean + (1 - weight) * value;
    return mean;
  });
}

const DASHES = [undefined, [7, 4], [2, 3], [10, 3, 2, 3]];

// Room for the longest number of an axis: a sign that is cut off is another number.
function roomFor(plot, values, index, cycle) {
  const axis = plot.axes[index];
  const longest = (values ?? []).reduce((found, value) => (value.length > found.length ? value : found), "");
  plot.ctx.font = axis.font[0];
  const room = Math.ceil(axis.ticks.size + axis.gap + plot.ctx.measureText(longest).width / devicePixelRatio) + 2;
  return cycle > 1 ? Math.max(axis._size, room) : room;  // it never shrinks again, so that the drawing comes to an end
}

const newest = (values) => values.findLast((value) => value !== null && value !== undefined);

// Curves of several runs as three: their mean, and the lowest and the highest at each step that all of them have. Each: {points, places}.
export function meanOf(curves) {
  const steps = [...curves[0].points.keys()].filter((step) => curves.every((each) => each.points.has(step)));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const along = (found) => new Map(steps.map((step) => [step, found(curves.map((each) => each.points.get(step)))]));
  const places = curves[0].places && new Map(steps.map((step) => [step, mean(curves.map((each) => each.places.get(step) ?? 0))]));
  return { mean: along(mean), low: along((values) => Math.min(...values)), high: along((values) => Math.max(...values)), places };
}

// One chart; `lines` may hold a mean with `band`, followed by its two `bound` lines, the lowest and the highest. `open` is called with the step that is clicked. `lines`: [{label, points: Map(step -> value), places, sparse, colour, dash}], places as placesOf gives them, the last two as numbers; `unit` follows the numbers of its axis.
export class Chart {
  constructor(title, unit, open, { height = () => 190, buttons = [] } = {}) {
    this.title = title;
    this.unit = unit;
    this.open = open;
    this.height = height;
    this.caption = el("span", { tabindex: 0 }, title);
    this.box = el("figure", { class: "chart" }, el("figcaption", {}, this.caption, el("span", { class: "tools" }, buttons)));
    this.hole = el("div", { class: "hole" });
    this.box.append(this.hole);
    this.plot = null;
  }

  draw(lines, { smooth, log, axis = "step", marks = [] }) {
    const placed = lines.map((line) => new Map([...line.points].map(([step, value]) => [line.places ? line.places.get(step) : step, [step, value]]).filter(([place]) => place !== undefined)));
    const xs = [...new Set(placed.flatMap((points) => [...points.keys()]))].sort((a, b) => a - b);
    this.table = { axis, xs, lines, placed };
    const data = [xs, ...lines.map((line, index) => {
      const values = xs.map((place) => placed[index].get(place)?.[1] ?? null).map((value) => (log && value !== null && value <= 0 ? null : value));
      return smooth > 0 && !line.sparse ? smoothed(values, smooth) : values;
    })];
    const where = lines[0]?.places;
    const marked = marks.map(([step, what]) => [where ? where.get(step) : step, what]).filter(([place]) => place !== undefined);
    const shape = JSON.stringify([lines.map((line) => [line.label, line.sparse, line.colour, line.dash]), log, axis, css("--ink"), marked]);
    this.box.dataset.marks = marks.map(([step, what]) => `${step}: ${what}`).join("; ");
    if (this.plot && shape === this.shape) {
      this.plot.setData(data);
      return;
    }
    this.shape = shape;
    this.plot?.destroy();
    const grid = { stroke: css("--grid"), width: 1 };
    const text = (value) => (value === null || value === undefined ? "–" : `${number(value)}${this.unit}`);
    const options = {
      width: Math.max(200, this.hole.clientWidth), height: this.height(),
      scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
      legend: { live: true },
      hooks: { draw: [(plot) => markSteps(plot, marked)] },
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false } },
      axes: [
        { stroke: css("--ink2"), grid, ticks: grid, values: (_, found) => found.map(AXES[axis]) },
        { stroke: css("--ink2"), grid, ticks: grid, size: roomFor, values: (_, found) => found.map((value) => (value === null ? "" : text(value))) },
      ],
      bands: lines.flatMap((line, index) => (line.band ? [{ series: [index + 3, index + 2], fill: `color-mix(in srgb, ${css(COLOURS[line.colour % COLOURS.length])} 18%, transparent)` }] : [])),
      series: [{ label: axis }, ...lines.map((line) => ({
        label: line.label, stroke: line.bound ? "transparent" : css(COLOURS[line.colour % COLOURS.length]), width: 1.6, spanGaps: true, class: line.bound ? "bound" : null,
        dash: DASHES[(line.dash + Math.floor(line.colour / COLOURS.length)) % DASHES.length],
        points: { show: !line.bound && (line.sparse || xs.length < 30), size: line.sparse ? 6 : 4 },
        value: (plot, value, series, at) => text(at === null || at === undefined ? newest(plot.data[series]) : value),
      }))],
    };
    this.plot = new uPlot(options, data, this.hole);
    let pressed = 0;
    this.plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    this.plot.over.addEventListener("click", (event) => {
      const at = this.plot.cursor.idx;
      if (at === null || at === undefined || Math.abs(event.clientX - pressed) >= 4) return;  // a drag zooms
      const place = this.plot.data[0][at];
      const step = this.table.placed.map((points) => points.get(place)?.[0]).find((found) => found !== undefined);
      if (step !== undefined) this.open(step);
    });
  }

  // What is drawn, as recorded: a row a place on the axis, a column a line.
  csv() {
    const { axis, xs, lines, placed } = this.table;
    const cell = (text) => (/^[=+@\t\r-]|[",\n]/.test(text) ? `"${text.replace(/^[=+@\t\r-]/, "'$&").replaceAll('"', '""')}"` : text);  // a table's program would run =…
    const rows = [[axis, ...lines.map((line) => cell(line.label))]];
    for (const place of xs) rows.push([place, ...placed.map((points) => points.get(place)?.[1] ?? "")]);
    return rows.map((row) => `${row.join(",")}\n`).join("");
  }

  // The picture on the page's own ground, with its title and the names of its lines. Answers a canvas.
  picture() {
    const drawn = this.plot.ctx.canvas, scale = devicePixelRatio, line = 20 * scale;
    const { lines } = this.table;
    const canvas = el("canvas", { width: drawn.width, height: drawn.height + line * (lines.length + 2) });
    const pen = canvas.getContext("2d");
    pen.fillStyle = css("--paper");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.fillStyle = css("--ink");
    pen.font = `600 ${14 * scale}px system-ui, sans-serif`;
    pen.fillText(this.title, 8 * scale, line);
    pen.drawImage(drawn, 0, 1.4 * line);
    pen.font = `${12 * scale}px system-ui, sans-serif`;
    lines.filter((each) => !each.bound).forEach((each, index) => {
      const y = drawn.height + line * (index + 2.2);
      pen.fillStyle = css(COLOURS[each.colour % COLOURS.length]);
      pen.fillRect(8 * scale, y - 9 * scale, 10 * scale, 10 * scale);
      pen.fillStyle = css("--ink");
      pen.fillText(each.label, 24 * scale, y);
    });
    return canvas;
  }

  resize() {
    this.plot?.setSize({ width: Math.max(200, this.hole.clientWidth), height: this.height() });
  }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
  }
}
