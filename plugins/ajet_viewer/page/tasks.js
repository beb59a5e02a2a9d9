// What became of each held-out task, validation by validation: which were learned, which were lost.

import { el, number, spelled } from "./dom.js";
import { get, path } from "./data.js";
import { address } from "./address.js";

// A cell: [attempts, scored, successes or null where nothing says what one is, mean reward, one of its episodes].
export function cell(found) {
  if (!found) return el("td", { class: "cell" });
  const { attempts, scored, successes, reward, uuid } = found;
  const share = successes === null ? reward : successes / attempts;
  const kind = !scored ? "unscored" : share >= 1 ? "all" : share > 0 ? "some" : "none";
  const told = successes === null ? number(reward, 2) : attempts === 1 ? (successes ? "✓" : "✗") : `${successes}/${attempts}`;
  return el("td", { class: "cell" }, el("a", { class: kind, href: address(["run", found.run, "episode", uuid]), title: `${attempts} attempts, ${scored} scored, mean reward ${number(reward)}` }, scored ? told : "–"));
}

export async function tasksPage(run, context) {
  const head = el("tr");
  const body = el("tbody");
  const hint = el("p", { class: "hint", role: "status" });
  const flipped = el("input", { type: "checkbox", onchange: () => fill() });
  const only = el("label", {}, flipped, " only those that changed");
  let data = { steps: [], tasks: [], complete: true };

  function fill() {
    const { steps, tasks, judge_change: changed } = data;
    const since = typeof changed === "number" ? ` since the judge changed after step ${changed}` : "";
    head.replaceChildren(...["task", ...steps.map((step) => `step ${step}`), ""].map((name, index) => el("th", { class: index ? "number" : "" }, name)));
    const rows = tasks.filter((task) => !flipped.checked || task.changed);
    body.replaceChildren(...rows.map((task) => el("tr", { "data-row": task.task },
      el("td", { class: "question" }, spelled(task.query || task.task)),
      steps.map((step) => cell(task.cells[step] && { ...task.cells[step], run })),
      el("td", {}, task.before && task.after ? el("a", { href: address(["run", run, "episode", task.before], { with: task.after }) }, "before and after") : null))));
    const up = tasks.filter((task) => task.changed > 0).length;
    const down = tasks.filter((task) => task.changed < 0).length;
    hint.textContent = tasks.length ? `${number(tasks.length)} tasks, from the first validation${since} to the last ${up} better, ${down} worse${data.complete ? "" : " · reading"}`
      : data.complete ? "No validation was recorded: task_reader names no validation tasks, or none was due yet." : "reading";
  }

  async function refresh() {
    data = await get(`tasks/${path(run)}`);
    fill();
  }
  await refresh();
  context.every(3000, refresh);
  return el("section", {}, el("h1", {}, "Held-out tasks"), el("p", { class: "actions" }, only), hint,
    el("div", { class: "scroll" }, el("table", { class: "list matrix" }, el("thead", {}, head), body)));
}
