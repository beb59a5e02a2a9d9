// The calls of an episode: when each ran, and which one it goes on from.

import { el, seconds, spelled } from "./dom.js";

const ROW = 22;

export function waterfall(page) {
  const uses = page.tool_uses ?? [];
  const first = Math.min(page.started, ...page.calls.map((call) => call.started), ...uses.map((use) => use.started));
  const last = Math.max(page.ended, ...page.calls.map((call) => call.ended), ...uses.map((use) => use.ended), first + 0.001);
  const x = (time) => `${(100 * (time - first)) / (last - first)}%`;
  const bars = page.calls.map((call, index) => {
    const label = `call ${call.index}: ${seconds(call.ended - call.started)} after ${seconds(call.started - first)}`;
    return el("g", {}, el("rect", { x: x(call.started), y: index * ROW + 4, width: `${Math.max(0.3, (100 * (call.ended - call.started)) / (last - first))}%`, height: ROW - 8, rx: 3, class: call.error ? "bar failed" : "bar" },
      el("title", { svg: true }, label)));
  });
  // By its clock where the record has it, in the row of the last call before it.
  uses.forEach((use) => {
    const index = Math.max(0, page.calls.findLastIndex((call) => call.started <= use.started));
    const width = Math.max(0.3, (100 * (use.ended - use.started)) / (last - first));
    bars.push(el("rect", { x: x(use.started), y: index * ROW + 8, width: `${width}%`, height: ROW - 16, class: use.error ? "bar tool failed" : "bar tool" },
      el("title", { svg: true }, `${use.name}: ${seconds(use.ended - use.started)} after ${seconds(use.started - first)}${use.error ? `, ${use.error}` : ""}`)));
  });
  // Else a tool runs between the reply that asks for it and the request that brings its result.
  if (!uses.length) page.calls.forEach((call, index) => {
    const names = call.reply === null ? [] : (page.messages[call.reply].tool_calls ?? []).map((each) => each.function?.name ?? "?");
    const next = page.calls.find((other) => other.parent === call.index && other.started >= call.ended);
    if (!names.length || !next) return;
    const width = Math.max(0.3, (100 * (next.started - call.ended)) / (last - first));
    bars.push(el("rect", { x: x(call.ended), y: index * ROW + 8, width: `${width}%`, height: ROW - 16, class: "bar tool" },
      el("title", { svg: true }, `${names.join(", ")}: ${seconds(next.started - call.ended)} until the next request`)));
  });
  const busy = page.calls.reduce((sum, call) => sum + call.ended - call.started, 0);
  return el("div", {},
    el("svg", { class: "waterfall", width: "100%", height: Math.max(ROW, page.calls.length * ROW), role: "img", "aria-label": "when each call ran" }, bars),
    el("p", { class: "hint" }, `${seconds(page.ended - page.started)} in all; model calls ${seconds(busy)} (thick), tools ${uses.length ? seconds(uses.reduce((sum, use) => sum + use.ended - use.started, 0)) : "between a reply and the next request"} (thin), the rest is the agent and the judge`));
}

// What each use of a tool was asked and answered.
export function toolUses(page) {
  const rows = (page.tool_uses ?? []).map((use) => el("tr", { class: use.error ? "failed" : "" },
    el("td", {}, spelled(use.server ? `${use.server}: ${use.name}` : use.name)), el("td", {}, spelled(JSON.stringify(use.arguments))),
    el("td", {}, spelled(use.result.length > 300 ? `${use.result.slice(0, 300)}…` : use.result)),
    el("td", { class: "number" }, seconds(use.ended - use.started)), el("td", {}, use.error ? el("span", { class: "badge bad" }, use.error) : "")));
  return rows.length ? el("table", { class: "list tool-uses" }, el("thead", {}, el("tr", {}, ["tool", "arguments", "result", "time", ""].map((name) => el("th", { class: name === "time" ? "number" : "" }, name)))), el("tbody", {}, rows)) : null;
}

// Lanes as in a graph of commits: a call that extends its parent stays in its lane, a fork opens a new one.
export function tree(page) {
  const lanes = [];
  const place = new Map();
  const nodes = page.calls.map((call, row) => {
    let lane = call.parent !== null && !call.fork && lanes[place.get(call.parent)?.lane] === call.parent ? place.get(call.parent).lane : lanes.length;
    lanes[lane] = call.index;
    place.set(call.index, { lane, row });
    return { call, lane, row };
  });
  const at = ({ lane, row }) => [12 + lane * 18, row * ROW + ROW / 2];
  const width = 24 + Math.max(0, ...nodes.map((node) => node.lane)) * 18;
  const edges = nodes.filter(({ call }) => call.parent !== null && place.has(call.parent)).map((node) => {
    const [x1, y1] = at(place.get(node.call.parent));
    const [x2, y2] = at(node);
    return el("path", { d: `M${x1} ${y1} C ${x1} ${y2}, ${x1} ${y2}, ${x2} ${y2}`, class: node.call.fork ? "edge forked" : "edge" });
  });
  const dots = nodes.map((node) => el("circle", { cx: at(node)[0], cy: at(node)[1], r: 5, class: node.call.trained ? "dot" : "dot untrained" }));
  return el("div", { class: "tree" },
    el("svg", { width, height: Math.max(ROW, nodes.length * ROW), role: "img", "aria-label": "which call goes on from which" }, edges, dots),
    el("ol", {}, nodes.map(({ call }) => el("li", {}, el("a", { href: `#call-${call.index}`, onclick: (event) => { event.preventDefault(); document.getElementById(`call-${call.index}`)?.scrollIntoView({ block: "center" }); } }, `call ${call.index}`),
      spelled(` ${call.agent === "default" ? "" : call.agent} ${call.prefix ? `${call.prefix} shared + ` : ""}${call.suffix} new → ${call.reply_tokens}`),
      call.fork ? el("span", { class: "badge warn" }, `forked: ${call.fork}`) : call.parent !== null ? " extends" : " opens"))));
}
