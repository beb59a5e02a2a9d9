// An evaluation: a table of results, a row a model that played the same tasks, and below it what became of each task.

import { badge, el, number, spelled } from "./dom.js";
import { get, path } from "./data.js";
import { address } from "./address.js";
import { cell } from "./tasks.js";

const percent = (value) => `${(100 * value).toFixed(value > 0 && value < 1 ? 1 : 0)} %`;

function success(run) {
  if (run["validation/success_rate"] === null) return "–";
  const low = run["validation/success_low"], high = run["validation/success_high"];
  return `${percent(run["validation/success_rate"])}${low === null ? "" : ` (${percent(low)} to ${percent(high)})`}`;
}

function reward(run) {
  const error = run["validation/reward_error"];
  return `${number(run["validation/reward"])}${error ? ` ± ${number(error)}` : ""}`;
}

const RESULTS = [
  ["success (95 % interval)", success],
  ["reward", reward],
  ["tasks", (run) => number(run["validation/tasks"]), "minor"],
  ["attempts", (run) => number(run["validation/episodes"]), "minor"],
  ["scored", (run) => number(run["validation/scored"]), "minor"],
  ["failed", (run) => number(run["validation/failed"])],
  ["left out", (run) => number(run["validation/left_out"] ?? 0), "minor"],
];
const folderOf = (name) => name.slice(0, name.lastIndexOf("/"));

export async function evaluationPage(run, context, header) {
  const head = el("div", { class: "head" });
  const results = el("tbody"), titles = el("tr"), tasks = el("tbody");
  const flipped = el("input", { type: "checkbox", onchange: () => fill() });
  const only = el("label", {}, flipped, " only tasks at which models differ");
  const hint = el("p", { class: "hint", role: "status" });
  let found = [];  // of each model: its row and its tasks

  const named = (each) => [spelled(each.model ?? each.name), each.name === run ? [" ", badge("this one", "mute")] : null];

  function fill() {
    results.replaceChildren(...found.map(({ row }) => el("tr", { "data-row": row.name },
      el("td", { class: "name" }, row.name === run ? named(row) : el("a", { href: address(["run", row.name]) }, named(row))),
      RESULTS.map(([, told, kind]) => el("td", { class: `number ${kind ?? ""}` }, told(row))))));
    titles.replaceChildren(el("th", {}, "task"), ...found.map(({ row }) => el("th", { class: "number" }, spelled(row.model ?? row.name))));
    only.hidden = found.length < 2;
    const all = new Map();
    found.forEach(({ data }, at) => data.tasks.forEach((task) => {
      const cells = all.get(task.task) ?? { query: task.query || task.task, at: [] };
      cells.at[at] = Object.values(task.cells).at(-1);
      all.set(task.task, cells);
    }));
    const worth = (each) => (each ? each.successes ?? each.reward : null);
    const rows = [...all].filter(([, { at }]) => !flipped.checked || new Set(found.map((_, index) => worth(at[index]))).size > 1);
    tasks.replaceChildren(...rows.map(([task, { query, at }]) => el("tr", { "data-row": task },
      el("td", { class: "question", title: task }, spelled(query)),
      found.map(({ row }, index) => cell(at[index] && { ...at[index], run: row.name })))));
    hint.textContent = all.size ? `${number(rows.length)} of ${number(all.size)} tasks` : found.every(({ data }) => data.complete) ? "Nothing was played yet." : "reading";
  }

  async function refresh() {
    const [status, { runs }] = await Promise.all([get(`run/${path(run)}`), get("runs")]);
    head.replaceChildren(...header(status));
    const same = runs.filter((each) => each.name === run || (each.kind === "eval" && status.comparison && each.comparison === status.comparison && folderOf(each.name) === folderOf(run)));
    same.sort((a, b) => (a.started ?? 0) - (b.started ?? 0));
    found = await Promise.all(same.map(async (row) => ({ row, data: await get(`tasks/${path(row.name)}`) })));
    fill();
  }

  const page = el("section", {}, head,
    el("p", { class: "actions" }, el("a", { class: "button", href: address(["run", run, "episodes"]) }, "episodes"),
      el("a", { class: "button", href: address(["run", run, "rewards"]) }, "rewards"),
      el("a", { class: "button", href: address(["run", run, "config"]) }, "config")),
    el("h2", {}, "Results"),
    el("div", { class: "scroll" }, el("table", { class: "list results" }, el("thead", {}, el("tr", {}, el("th", {}, "model"), RESULTS.map(([name, , kind]) => el("th", { class: `number ${kind ?? ""}` }, name)))), results)),
    el("h2", {}, "Tasks"), el("p", { class: "actions" }, only), hint,
    el("div", { class: "scroll" }, el("table", { class: "list matrix" }, el("thead", {}, titles), tasks)));
  await refresh();
  context.every(3000, refresh);
  return page;
}
