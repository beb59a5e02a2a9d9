// What a run does now, as `ajet status` says it: depths, rates, which side waits, and how stale the last step was.

import { el, number, seconds, spelled } from "./dom.js";

const RATES = { steps_per_hour: "steps an hour", episodes_per_second: "episodes a second", tokens_per_second: "tokens a second" };
const WIDTH = 200, HEIGHT = 16;

export function nowPanel(live) {
  if (!live) return null;
  const facts = [
    ["phase", live.state === "running" ? `${live.phase} for ${seconds(live.phase_age)}` : ""],
    ["heard", live.state === "running" ? `${seconds(live.updated_age)} ago, ${live.processes} ${live.processes === 1 ? "process" : "processes"}` : ""],
    ["depths", listed(live.depths, (name, count) => `${name} ${number(count)}`)],
    ["oldest", listed(live.oldest, (name, age) => `${name.replaceAll("_", " ")} ${seconds(age)}`)],
    ["samplers", live.samplers.map(sampler).join("; ")],
    ["rates", listed(live.rates, (name, value) => `${number(value)} ${RATES[name] ?? name}`)],
    ["waiting", live.waits],
    ["saved", live.checkpoint === null ? "" : `step ${number(live.checkpoint)}, ${number(live.behind)} ${live.behind === 1 ? "step" : "steps"} ago`],
  ].filter(([, said]) => said);
  const bars = Object.entries(live.staleness);
  if (!facts.length && !bars.length) return null;
  return el("div", { class: "now" },
    el("dl", {}, facts.map(([name, said]) => [el("dt", {}, name), el("dd", {}, spelled(said))])),
    bars.length ? histogram(bars) : null);
}

const sampler = (each) => [
  `${each.name}: ${number(each.leases)} ${each.leases === 1 ? "lease" : "leases"}`,
  each.version === undefined ? "" : `policy ${number(each.version)}`,
  each.episodes_per_second === undefined ? "" : `${number(each.episodes_per_second)} episodes a second`,
  `heard ${seconds(each.age)} ago`,
].filter(Boolean).join(", ");

const listed = (values, told) => Object.entries(values).map(([name, value]) => told(name, value)).join(", ");

// Of the last step's episodes: by how many steps their oldest call was older than what was trained.
function histogram(bars) {
  const most = Math.max(...bars.map(([, count]) => count));
  const rows = bars.map(([steps, count]) => el("tr", {},
    el("th", { class: "number", scope: "row" }, steps),
    el("td", {}, el("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
      el("rect", { class: "bar", y: 2, width: Math.max(2, Math.round(WIDTH * count / most)), height: HEIGHT - 4 }))),
    el("td", { class: "number" }, number(count))));
  return el("table", { class: "stale" }, el("caption", {}, "last step's episodes, by steps of age"), el("tbody", {}, rows));
}
