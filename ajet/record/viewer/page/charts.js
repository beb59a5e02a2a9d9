// Curves of metrics over steps, one small chart a subject, several runs laid over each other.

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

function markSteps(plot, marks) {
  const { left, top, width, height } = plot.bbox;
  plot.ctx.save();
  plot.ctx.setLineDash([4, 4]);
  plot.ctx.strokeStyle = css("--ink2");
  plot.ctx.fillStyle = css("--ink2");
  plot.ctx.font = plot.axes[0].font[0];
  plot.ctx.textAlign = "left";
  for (const [step, what] of marks) {
    const at = plot.valToPos(step, "x", true);
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
  if (cycle > 1) return axis._size;
  const longest = (values ?? []).reduce((found, value) => (value.length > found.length ? value : found), "");
  plot.ctx.font = axis.font[0];
  return Math.ceil(axis.ticks.size + axis.gap + plot.ctx.measureText(longest).width / devicePixelRatio) + 2;
}

const newest = (values) => values.findLast((value) => value !== null && value !== undefined);

// One chart; `open` is called with the step that is clicked. `lines`: [{label, points: Map(step -> value), sparse, colour, dash}], the last two as numbers; `unit` follows the numbers of its axis.
export class Chart {
  constructor(title, unit, open) {
    this.unit = unit;
    this.open = open;
    this.box = el("figure", { class: "chart" }, el("figcaption", {}, title));
    this.hole = el("div", { class: "hole" });
    this.box.append(this.hole);
    this.plot = null;
  }

  draw(lines, { smooth, log, marks = [] }) {
    const steps = [...new Set(lines.flatMap((line) => [...line.points.keys()]))].sort((a, b) => a - b);
    const data = [steps, ...lines.map((line) => {
      const values = steps.map((step) => line.points.get(step) ?? null).map((value) => (log && value !== null && value <= 0 ? null : value));
      return smooth > 0 && !line.sparse ? smoothed(values, smooth) : values;
    })];
    const shape = JSON.stringify([lines.map((line) => [line.label, line.sparse, line.colour, line.dash]), log, css("--ink"), marks]);
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
      width: Math.max(200, this.hole.clientWidth), height: 190,
      scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
      legend: { live: true },
      hooks: { draw: [(plot) => markSteps(plot, marks)] },
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false } },
      axes: [
        { stroke: css("--ink2"), grid, ticks: grid, values: (_, found) => found.map((value) => (Number.isInteger(value) ? value : "")) },
        { stroke: css("--ink2"), grid, ticks: grid, size: roomFor, values: (_, found) => found.map((value) => (value === null ? "" : text(value))) },
      ],
      series: [{ label: "step" }, ...lines.map((line) => ({
        label: line.label, stroke: css(COLOURS[line.colour % COLOURS.length]), width: 1.6, spanGaps: true,
        dash: DASHES[(line.dash + Math.floor(line.colour / COLOURS.length)) % DASHES.length],
        points: { show: line.sparse || steps.length < 30, size: line.sparse ? 6 : 4 },
        value: (plot, value, series, at) => text(at === null || at === undefined ? newest(plot.data[series]) : value),
      }))],
    };
    this.plot = new uPlot(options, data, this.hole);
    let pressed = 0;
    this.plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    this.plot.over.addEventListener("click", (event) => {
      const at = this.plot.cursor.idx;
      if (at !== null && at !== undefined && Math.abs(event.clientX - pressed) < 4) this.open(this.plot.data[0][at]);  // a drag zooms
    });
  }

  resize() {
    this.plot?.setSize({ width: Math.max(200, this.hole.clientWidth), height: 190 });
  }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
  }
}
