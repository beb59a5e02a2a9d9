// All runs of the folder, in a table that keeps itself fresh: sorted, filtered, with the settings in which they differ.

import { ago, badge, el, number, spelled } from "./dom.js";
import { get } from "./data.js";
import { address } from "./address.js";
import { tagBadges } from "./notes.js";

export const stateKind = (state) => ({ running: "live", finished: "good", failed: "bad", stopped: "bad" })[state] ?? "mute";

const lossOf = (value) => (value === null || value === undefined ? [number(null)] : [el("span", { class: "minor" }, "loss "), number(value)]);
const rewardOf = (run) => run["train/reward"] ?? run["debug/reward"];
const heldOut = (run) => run["validation/success_rate"] ?? run["validation/reward"];
const RUN_COLUMNS = [["name", "run", (run) => run.name], ["state", "state", (run) => run.state], ["step", "step", (run) => run.step], ["reward", "reward", rewardOf], ["held", "held out", heldOut], ["updated", "changed", (run) => run.updated]];
const RUN_NUMBERS = new Set(["step", "reward", "held"]);
const WIDEST = 26;  // characters of a setting's value in the table
const short = (key) => key.split(".").at(-1);

// What a condition says of a run: `word`, or `name>0.5` with = < > <= >= over a setting's (last) name, step, reward or held.
function meets(run, condition) {
  const said = /^([\w./]+)(<=|>=|<|>|=)(.*)$/.exec(condition);
  if (!said) {
    const settings = Object.entries(run.settings).map(([key, value]) => `${key}=${value}`);
    return [run.name, run.state, run.kind, run.notes.note, ...run.notes.tags, ...settings].join("\n").toLowerCase().includes(condition.toLowerCase());
  }
  const [, name, sign, text] = said;
  const column = RUN_COLUMNS.find(([each]) => each === name);
  const keys = Object.keys(run.settings).filter((key) => key === name || key.endsWith(`.${name}`));
  const values = name === "tag" ? run.notes.tags : column ? [column[2](run)] : keys.map((key) => run.settings[key]);
  return values.some((value) => {
    if (value === null || value === undefined) return false;
    const [a, b] = [Number(value), Number(text)];
    if (sign === "=") return String(value).toLowerCase() === text.toLowerCase() || (text !== "" && a === b);
    return text !== "" && (sign[0] === "<" ? a < b : a > b) || (sign.length === 2 && a === b);
  });
}

// A setting's value as a cell has room for: of a path the end, which tells it from others.
function cellText(value) {
  const text = String(value ?? "null");
  if (text.length <= WIDEST) return text;
  return text.includes("/") && !text.includes(" ") ? `…${text.slice(1 - WIDEST)}` : `${text.slice(0, WIDEST - 1)}…`;
}

// A name that may be broken after each of its _.
const breakable = (name) => name.split("_").flatMap((part, index) => (index ? ["_", el("wbr"), part] : [part]));

// What was measured, and apart from it what a phone has no room for: its interval and of how many.
function measured(text) {
  const [value, ...rest] = (text ?? number(null)).split(" ");
  return [value, rest.length ? el("span", { class: /^\d/.test(value) ? "minor" : "" }, ` ${rest.join(" ")}`) : null];
}

// Without a value comes last, whichever way is asked for.
function inOrder(rows, sort, of) {
  const sign = sort.startsWith("-") ? -1 : 1;
  const compared = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const none = (value) => value === null || value === undefined;
  return [...rows].sort((a, b) => none(of(a)) - none(of(b)) || (none(of(a)) ? 0 : sign * compared(of(a), of(b))));
}

export async function runsPage(context) {
  const query = { sort: "-updated", ...context.query };
  const head = el("tr"), body = el("tbody");
  const chosen = new Set();
  const compare = el("a", { class: "button", hidden: true }, "");
  const table = el("table", { class: "list" }, el("thead", {}, head), body);
  const hint = el("p", { class: "hint", role: "status" });
  const search = el("input", { type: "search", size: 34, placeholder: "word  tag=…  lr>1e-5  ( / )", "aria-label": "conditions on runs", "data-search": true, value: query.text ?? "", oninput: (event) => change("text", event.target.value) });
  const choice = el("details", { class: "columns-choice", hidden: true }, el("summary", {}, "settings"), el("div"));
  const page = el("section", { class: "wide" }, el("h1", {}, "Runs"), el("div", { class: "filters" }, search, compare, choice), hint, el("div", { class: "scroll" }, table));
  let data = { runs: [], keys: [] };

  const columns = () => (query.columns === undefined ? data.keys.slice(0, 4) : query.columns.split(",").filter((key) => data.keys.includes(key)));

  function change(name, value) {
    query[name] = value;
    const plain = { ...query, sort: query.sort === "-updated" ? "" : query.sort };
    history.replaceState(null, "", query.columns === "" ? `${address([], { ...plain, columns: "-" })}` : address([], plain));
    fill();
  }

  function pick(name, on) {
    if (on) chosen.add(name); else chosen.delete(name);
    const [first, ...others] = chosen;
    compare.hidden = chosen.size < 2;
    compare.textContent = `overlay ${chosen.size} runs`;
    compare.setAttribute("href", first ? address(["run", first], { with: others.join(",") }) : "#/");
  }

  function row(run, keys) {
    return el("tr", { "data-row": run.name },
      el("td", {}, el("input", { type: "checkbox", "aria-label": `overlay ${run.name}`, checked: chosen.has(run.name), onchange: (event) => pick(run.name, event.target.checked) })),
      el("td", { class: "name" }, el("a", { href: address(["run", run.name]) }, spelled(run.name)), run.kind === "train" ? null : [" ", badge(run.kind, "mute")],
        keys.length ? el("div", { class: "answer narrow" }, keys.filter((key) => key in run.settings).map((key) => el("div", {}, `${short(key)} `, el("span", { class: "value" }, spelled(cellText(run.settings[key])))))) : null,
        run.notes.edit ? el("div", { class: "answer", title: run.notes.note }, tagBadges(run.notes), spelled(run.notes.note.split("\n")[0].slice(0, 120))) : null),
      el("td", {}, badge(run.state, stateKind(run.state)), run.state === "running" && run.phase ? ` ${run.phase}` : "",
        run.learned_nothing ? [" ", el("span", { title: run.learned_nothing }, badge("learned nothing", "bad"))] : null,
        run.gamed ? [" ", el("span", { title: run.gamed }, badge("rewards gamed?", "bad"))] : null),
      el("td", { class: "number minor" }, run.steps ? `${number(run.step)} / ${number(run.steps)}` : number(run.step)),
      el("td", { class: "number", title: run.reward_over ?? "" }, run.given ? lossOf(run.loss) : [number(rewardOf(run)), run.reward_short ? ` ${run.reward_short}` : null]),
      el("td", { class: "number", title: run.held_out ?? "" }, run.given ? lossOf(run["validation/loss"]) : measured(run.held_out_short)),
      el("td", { class: "when minor" }, ago(run.updated)),
      keys.map((key) => el("td", { class: "value minor", title: key in run.settings ? String(run.settings[key]) : "" }, key in run.settings ? spelled(cellText(run.settings[key])) : "–")));
  }

  function fill() {
    const keys = columns();
    const all = [...RUN_COLUMNS, ...keys.map((key) => [key, short(key), (run) => run.settings[key]])];
    const way = query.sort.replace(/^-/, "");
    head.replaceChildren(el("th"), ...all.map(([name, label]) => el("th", { class: [RUN_NUMBERS.has(name) ? "number" : "", name.includes(".") || name === "step" || name === "updated" ? "minor" : "", name.includes(".") ? "setting" : ""].join(" "), title: name.includes(".") ? name : "", "aria-sort": way !== name ? "none" : query.sort === name ? "ascending" : "descending" },
      el("button", { class: "sort", onclick: () => change("sort", query.sort === `-${name}` ? name : `-${name}`) }, name.includes(".") ? breakable(label) : label))));
    const conditions = (query.text ?? "").split(/\s+/).filter(Boolean);
    const met = data.runs.filter((run) => conditions.every((condition) => meets(run, condition)));
    const rows = inOrder(met, query.sort, all.find(([name]) => name === way)?.[2] ?? RUN_COLUMNS.at(-1)[2]);
    const at = body.querySelector(".at")?.getAttribute("data-row");
    body.replaceChildren(...rows.map((run) => row(run, keys)));
    if (at) [...body.children].find((each) => each.getAttribute("data-row") === at)?.classList.add("at");
    choice.hidden = !data.keys.length;
    const box = choice.lastChild;
    if (box.dataset.keys !== data.keys.join()) {
      box.dataset.keys = data.keys.join();
      const tick = (key) => el("label", { title: key }, el("input", { type: "checkbox", checked: keys.includes(key), onchange: (event) => change("columns", data.keys.filter((each) => (each === key ? event.target.checked : columns().includes(each))).join()) }), ` ${key.replace(/^ajet\./, "")}`);
      box.replaceChildren(...data.keys.map(tick));
    }
    table.hidden = !rows.length;
    hint.textContent = !data.runs.length ? "No run has written here yet. Start one: ajet --conf FILE.yaml --backbone local" : rows.length < data.runs.length ? `${number(rows.length)} of ${number(data.runs.length)} runs` : "";
  }

  async function refresh() {
    data = await get("runs");
    fill();
    return data;
  }

  const { runs, only } = await refresh();
  if (only !== null && runs.length === 1 && !sessionStorage.getItem("opened")) {
    sessionStorage.setItem("opened", "1");
    context.go(address(["run", only]));
  }
  context.every(3000, refresh);
  return page;
}
