// A run's configuration with the origin of each value, or what differs between two runs.

import { badge, el, spelled } from "./dom.js";
import { get, isFrozen, path } from "./data.js";
import { address } from "./address.js";

export async function configPage(run, context) {
  const other = context.query.with?.split(",")[0] ?? "";
  const [mine, theirs, all] = await Promise.all([get(`config/${path(run)}`), other ? get(`config/${path(other)}`) : null, isFrozen ? { runs: [] } : get("runs")]);
  const text = (value) => JSON.stringify(value) ?? "";
  const values = new Map((theirs?.keys ?? []).map((entry) => [entry.key, text(entry.value)]));
  const rows = theirs
    ? [...new Set([...mine.keys.map((entry) => entry.key), ...values.keys()])].map((key) => [key, text(mine.keys.find((entry) => entry.key === key)?.value), values.get(key) ?? ""]).filter(([, a, b]) => a !== b)
    : mine.keys.map((entry) => [entry.key, text(entry.value), entry.origin]);
  const body = el("tbody");
  const search = el("input", { type: "search", placeholder: "key or value  ( / )", "aria-label": "key or value", "data-search": true, oninput: () => fill() });
  const changed = el("input", { type: "checkbox", onchange: () => fill() });
  const fill = () => {
    const wanted = search.value.toLowerCase();
    const found = rows.filter((row) => (!wanted || row.join(" ").toLowerCase().includes(wanted)) && (theirs || !changed.checked || row[2] !== "default"));
    body.replaceChildren(...found.map(([key, value, third]) => el("tr", { "data-row": key }, el("td", {}, el("code", {}, key)), el("td", { class: "value" }, spelled(value)),
      el("td", { class: "value" }, theirs ? spelled(third) : badge(third, third === "default" ? "mute" : "")))));
    hint.textContent = rows.length ? "" : theirs ? "The two configurations are the same." : "This run has left no resolved.yaml.";
  };
  const hint = el("p", { class: "hint" });
  const choose = el("select", { "aria-label": "compare with", onchange: (event) => context.go(address(["run", run, "config"], { with: event.target.value })) },
    el("option", { value: "" }, "compare with …"), all.runs.filter((each) => each.name !== run).map((each) => el("option", { value: each.name, selected: each.name === other }, each.name)));
  fill();
  return el("section", {}, el("h1", {}, theirs ? `${run} against ${other}` : "Configuration"),
    el("p", { class: "actions" }, search, theirs ? null : el("label", {}, changed, " only what was set"), all.runs.length > 1 ? choose : null), hint,
    el("div", { class: "scroll" }, el("table", { class: "list settings" }, el("thead", {}, el("tr", {}, ["key", theirs ? run : "value", theirs ? other : "from"].map((name) => el("th", {}, name)))), body)),
    theirs || !mine.commands ? null : el("details", {}, el("summary", {}, "command lines"), el("pre", {}, spelled(mine.commands))));
}
