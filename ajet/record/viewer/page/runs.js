// All runs of the folder, in a table that keeps itself fresh.

import { ago, badge, el, number, spelled } from "./dom.js";
import { get } from "./data.js";
import { address } from "./address.js";

export const stateKind = (state) => ({ running: "live", finished: "good", failed: "bad", stopped: "bad" })[state] ?? "mute";

export async function runsPage(context) {
  const body = el("tbody");
  const chosen = new Set();
  const compare = el("a", { class: "button", hidden: true }, "");
  const table = el("table", { class: "list" },
    el("thead", {}, el("tr", {}, ["", "run", "state", "step", "reward", "held out", "changed"].map((name) => el("th", { class: ["step", "reward", "held out"].includes(name) ? "number" : "" }, name)))), body);
  const hint = el("p", { class: "hint" });
  const page = el("section", {}, el("h1", {}, "Runs"), el("p", { class: "actions" }, compare), el("div", { class: "scroll" }, table), hint);

  function pick(name, on) {
    if (on) chosen.add(name); else chosen.delete(name);
    const [first, ...others] = chosen;
    compare.hidden = chosen.size < 2;
    compare.textContent = `overlay ${chosen.size} runs`;
    compare.setAttribute("href", first ? address(["run", first], { with: others.join(",") }) : "#/");
  }

  function row(run) {
    const reward = run["train/reward"] ?? run["debug/reward"];
    return el("tr", { "data-row": run.name },
      el("td", {}, el("input", { type: "checkbox", "aria-label": `overlay ${run.name}`, checked: chosen.has(run.name), onchange: (event) => pick(run.name, event.target.checked) })),
      el("td", {}, el("a", { href: address(["run", run.name]) }, spelled(run.name)), run.kind === "train" ? null : badge(run.kind, "mute")),
      el("td", {}, badge(run.state, stateKind(run.state)), run.state === "running" && run.phase ? ` ${run.phase}` : "",
        run.learned_nothing ? [" ", el("span", { title: run.learned_nothing }, badge("learned nothing", "bad"))] : null,
        run.gamed ? [" ", el("span", { title: run.gamed }, badge("rewards gamed?", "bad"))] : null),
      el("td", { class: "number" }, run.steps ? `${number(run.step)} / ${number(run.steps)}` : number(run.step)),
      el("td", { class: "number", title: run.reward_over ?? "" }, number(reward), run.reward_short ? ` ${run.reward_short}` : null),
      el("td", { class: "number", title: run.held_out ?? "" }, run.held_out_short ?? number(null)),
      el("td", {}, ago(run.updated)));
  }

  async function refresh() {
    const { runs, only } = await get("runs");
    const at = body.querySelector(".at")?.getAttribute("data-row");
    body.replaceChildren(...runs.map(row));
    if (at) [...body.children].find((each) => each.getAttribute("data-row") === at)?.classList.add("at");
    table.hidden = !runs.length;
    hint.textContent = runs.length ? "" : "No run has written here yet. Start one: ajet --conf FILE.yaml --backbone local";
    return { runs, only };
  }

  const { runs, only } = await refresh();
  if (only !== null && runs.length === 1 && !sessionStorage.getItem("opened")) {
    sessionStorage.setItem("opened", "1");
    context.go(address(["run", only]));
  }
  context.every(3000, refresh);
  return page;
}
