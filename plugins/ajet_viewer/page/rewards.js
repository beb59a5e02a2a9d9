// How rewards spread, step by step: a column a step, a row a reward, the darker the more episodes; and one step as bars.

import { el, number } from "./dom.js";
import { get, path } from "./data.js";
import { address } from "./address.js";

const CELL = 18, LEFT = 92, WIDE = 900;
const steps = ({ first, last }) => (first === last ? String(first) : `${first}..${last}`);
const span = ([low, high]) => (low === high ? number(low) : `${number(low)} to ${number(high)}`);

function place(run, split, column, bin) {
  const reward = bin ? (bin[0] === bin[1] ? String(bin[0]) : `${bin[0]}..${bin[1]}`) : "";
  return address(["run", run, "episodes"], { step: steps(column), split, ...(bin ? { reward } : { status: "no score" }) });
}

// Best at the top; below all rewards those that have none, where there are any.
function rowsOf({ bins, columns }) {
  const rows = bins.map((bin, index) => ({ bin, label: span(bin), count: (column) => column.counts[index] })).reverse();
  return columns.some((column) => column.unscored) ? [...rows, { bin: null, label: "no score", count: (column) => column.unscored }] : rows;
}

function map(run, split, found, chosen, choose) {
  const rows = rowsOf(found);
  const wide = Math.min(48, (WIDE - LEFT) / found.columns.length);
  const height = rows.length * CELL + 18, width = LEFT + wide * found.columns.length;
  const every = Math.ceil(found.columns.length / 16);
  const all = (column) => Math.max(1, column.counts.reduce((sum, count) => sum + count, column.unscored));
  return el("svg", { class: "spread", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `rewards of ${split} by step` },
    rows.map((row, y) => el("text", { svg: true, x: LEFT - 6, y: y * CELL + 13, "text-anchor": "end" }, row.label)),
    found.columns.map((column, index) => el("g", { class: column === chosen ? "column chosen" : "column", onmouseenter: () => choose(column) },
      rows.map((row, y) => {
        const count = row.count(column);
        const cell = el("rect", { class: `cell ${row.bin ? "" : "unscored"}`, x: LEFT + index * wide, y: y * CELL, width: Math.max(1, wide - 1), height: CELL - 1, "fill-opacity": count ? 0.12 + 0.88 * count / all(column) : 0 });
        return count ? el("a", { svg: true, href: place(run, split, column, row.bin) }, cell) : cell;
      }),
      index % every ? null : el("text", { svg: true, x: LEFT + (index + 0.5) * wide, y: height - 4, "text-anchor": "middle" }, column.first))));
}

function bars(run, split, found, column) {
  const rows = rowsOf(found);
  const most = Math.max(1, ...rows.map((row) => row.count(column)));
  return el("table", { class: "stale" }, el("caption", {}, `step ${steps(column)}: ${number(column.counts.reduce((sum, count) => sum + count, 0))} scored, mean ${number(column.mean)}`),
    el("tbody", {}, rows.map((row) => el("tr", {}, el("th", { class: "number", scope: "row" }, row.label),
      el("td", {}, el("svg", { viewBox: "0 0 200 16", width: 200, height: 16, "aria-hidden": "true" }, el("rect", { class: row.bin ? "bar" : "bar failed", y: 2, width: row.count(column) ? Math.max(2, Math.round(200 * row.count(column) / most)) : 0, height: 12 }))),
      el("td", { class: "number" }, row.count(column) ? el("a", { href: place(run, split, column, row.bin) }, number(row.count(column))) : "")))));
}

export async function rewardsPage(run, context) {
  const body = el("div");
  const hint = el("p", { class: "hint", role: "status" });
  const chosen = {};  // split: the first step of the column that the bars show
  let data;

  function fill() {
    const found = Object.entries(data.splits);
    body.replaceChildren(...found.flatMap(([split, spread]) => {
      const column = spread.columns.find(({ first }) => first === chosen[split]) ?? spread.columns.at(-1);
      const below = el("div", {}, bars(run, split, spread, column));
      const drawn = map(run, split, spread, column, (next) => {
        chosen[split] = next.first;
        drawn.querySelector(".chosen")?.classList.remove("chosen");
        drawn.querySelectorAll(".column")[spread.columns.indexOf(next)].classList.add("chosen");
        below.replaceChildren(bars(run, split, spread, next));
      });
      return [el("h2", {}, split), el("div", { class: "scroll" }, drawn), below];
    }));
    hint.textContent = `${found.length ? "Each column is a step: the stronger a cell, the more of its episodes had that reward. A click shows them." : data.complete ? "No episode was recorded yet." : ""}${data.complete ? "" : " · reading"}`;
  }

  async function refresh() {
    const next = await get(`rewards/${path(run)}`);
    if (JSON.stringify(next) === JSON.stringify(data)) return;
    data = next;
    fill();
  }
  await refresh();
  context.every(3000, refresh);
  return el("section", {}, el("h1", {}, "Rewards"), hint, body);
}
