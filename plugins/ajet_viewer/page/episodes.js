// The table of a run's episodes: conditions above, newest first, more as one scrolls.

import { badge, el, number, seconds, spelled } from "./dom.js";
import { get, path } from "./data.js";
import { address } from "./address.js";

const COLUMNS = [
  ["step", "step"], ["split", "split"], ["task", "task"], ["repeat", "attempt"], ["status", "outcome"], ["reward", "reward"],
  ["advantage", "advantage"], ["calls", "calls"], ["tokens", "tokens"], ["forks", "forks"], ["seconds", "time"],
];
const MINOR = new Set(["split", "repeat", "advantage", "calls", "tokens", "forks", "seconds"]);  // not on a phone
const TEXTS = new Set(["split", "task", "status"]);
const FIELDS = [
  ["step", "step: 3 or 1..9"], ["split", "split"], ["task", "task id"], ["status", "status"], ["reward", "reward: ..0.5"], ["agent", "agent"],
];
const CHOICES = { split: ["", "train", "validation", "debug"], status: ["", "completed", "failed", "aborted", "no score"] };

export async function episodesPage(run, context) {
  const query = { ...context.query };
  const body = el("tbody");
  const count = el("p", { class: "hint", role: "status" });
  const more = el("button", { class: "more", hidden: true, onclick: () => load(true) }, "more");
  let shown = 0;
  let turn = 0;

  const change = (name, value) => {
    query[name] = value;
    history.replaceState(null, "", address(["run", run, "episodes"], query));
    return load(false);
  };
  let wait = 0;
  const later = (name) => (event) => {
    const value = event.target.value;
    clearTimeout(wait);
    wait = setTimeout(() => change(name, value), 250);
  };
  const field = ([name, hint]) => (CHOICES[name]
    ? el("select", { "aria-label": hint, onchange: (event) => change(name, event.target.value) },
      CHOICES[name].map((choice) => el("option", { value: choice, selected: (query[name] ?? "") === choice }, choice || `any ${hint}`)))
    : el("input", { placeholder: hint, "aria-label": hint, value: query[name] ?? "", size: 12, oninput: later(name) }));
  const search = el("input", { type: "search", placeholder: "free text  ( / )", "aria-label": "free text", "data-search": true, value: query.text ?? "", oninput: later("text") });

  const heads = COLUMNS.map(([name, label]) => el("th", { class: `${TEXTS.has(name) ? "" : "number"} ${MINOR.has(name) ? "minor" : ""}` }, el("button", { class: "sort", onclick: () => change("sort", query.sort === `-${name}` ? name : `-${name}`) }, label)));
  const table = el("table", { class: "list" }, el("thead", {}, el("tr", {}, heads)), body);

  async function load(further) {
    const mine = ++turn;
    const sort = query.sort ?? "-step";
    COLUMNS.forEach(([name], index) => heads[index].setAttribute("aria-sort", sort === name ? "ascending" : sort === `-${name}` ? "descending" : "none"));
    let found;
    try {
      found = await get(`episodes/${path(run)}`, { ...query, offset: further ? shown : 0, limit: further ? 100 : Math.max(100, Math.min(shown, 1000)) });
    } catch (error) {
      if (mine === turn) { count.textContent = error.message; body.replaceChildren(); shown = 0; }
      return;
    }
    if (mine !== turn) return;
    const at = body.querySelector(".at")?.getAttribute("data-row");
    const rows = found.rows.map((row) => line(run, row));
    if (further) body.append(...rows); else body.replaceChildren(...rows);
    if (at) [...body.children].find((each) => each.getAttribute("data-row") === at)?.classList.add("at");
    shown = body.children.length;
    more.hidden = shown >= found.total;
    table.hidden = !found.total;
    count.textContent = (found.total ? `${number(found.total)} episodes` : found.complete ? "No episode meets these conditions, or none was recorded yet." : "")
      + (found.complete ? "" : ` · reading, ${found.pending} files to go`) + (found.damaged ? ` · ${found.damaged} damaged lines left out` : "");
    if (!found.complete) setTimeout(() => { if (mine === turn && page.isConnected) load(false); }, 400);
  }

  const page = el("section", {}, el("div", { class: "filters" }, search, FIELDS.map(field)), count, el("div", { class: "scroll" }, table), more);
  context.onLeave(() => { turn = -1; clearTimeout(wait); });
  await load(false);
  context.every(3000, () => (scrollY < 300 ? load(false) : null));
  return page;
}

function line(run, row) {
  const group = address(["run", run, "group"], { step: row.step, split: row.split, task: row.task });
  return el("tr", { "data-row": row.uuid },
    el("td", { class: "number" }, number(row.step)),
    el("td", { class: "minor" }, row.split),
    el("td", { class: "question" }, el("a", { href: address(["run", run, "episode", row.uuid]) }, spelled(row.query || row.task || row.uuid.slice(0, 8))),
      row.answer ? el("div", { class: "answer" }, spelled(row.answer)) : null),
    el("td", { class: "number minor" }, el("a", { href: group, title: "the whole group" }, number(row.repeat))),
    el("td", {}, outcome(row)),
    el("td", { class: "number" }, number(row.reward)),
    el("td", { class: "number minor" }, number(row.advantage)),
    el("td", { class: "number minor" }, number(row.calls)),
    el("td", { class: "number minor" }, number(row.tokens)),
    el("td", { class: "number minor" }, row.forks ? number(row.forks) : ""),
    el("td", { class: "number minor" }, seconds(row.seconds)));
}

export function outcome(row) {
  if (row.failure) return badge(row.failure, "bad");
  if (row.status !== "completed") return badge(row.status, "bad");
  if (row.reward === null) return badge("no score", "mute");
  const checks = row.checks.map((check) => badge(check, "warn"));
  return [row.success === true ? badge("success", "good") : row.success === false ? badge("miss", "bad") : badge("scored"), ...checks];
}
