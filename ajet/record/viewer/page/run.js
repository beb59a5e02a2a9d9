// A run: what it does now, and its curves, alone or laid over other runs'.

import { ago, badge, el, number, prose, seconds, spelled } from "./dom.js";
import { get, path } from "./data.js";
import { address } from "./address.js";
import { nowPanel } from "./now.js";
import { Chart, byJudge, changesOfJudge, changesOfScorer, curvesOf, placesOf } from "./charts.js";
import { definition } from "./definitions.js";
import { Enlarged, axisChoice } from "./enlarged.js";
import { explain } from "./hint.js";
import { notesPanel } from "./notes.js";
import { stateKind } from "./runs.js";

// Subject, unit, and the metrics that belong to it: names, or the beginning of names.
const SUBJECTS = [
  ["Reward, of the scored", "", ["train/reward", "validation/reward", "debug/reward"]],
  ["Success", "", ["train/success_rate", "validation/success_rate", "debug/success_rate"]],
  ["Scorers", "", ["train/scorer/", "validation/scorer/", "debug/scorer/"]],
  ["Episodes by scorer", "", ["train/scored_by/", "validation/scored_by/", "debug/scored_by/"]],
  ["KL", " nats", ["kl", "mismatch_kl"]],
  ["Entropy", " nats", ["entropy"]],
  ["Lengths", "", ["train/reply_tokens", "validation/reply_tokens", "train/turns"]],
  ["Forked calls by reason", "", ["train/fork_rate/", "train/forks"]],
  ["Largest logprob gap", " nats", ["logprob_gap_max"]],
  ["Staleness in versions", "", ["train/staleness_max", "train/staleness_mean"]],
  ["Stale tokens", "", ["stale_fraction", "stale_is_weight_mean", "stale_is_capped_fraction"]],
  ["Failures by boundary", "", ["train/failed", "train/failed/", "train/no_score", "train/aborted"]],
  ["Tokens a step", "", ["train/sampled_tokens", "train/trained_tokens", "computed_tokens"]],
  ["Sampled, not trained", "", ["train/untrained/"]],
  ["Seconds a step", " s", ["seconds/"]],
  ["Gradient norm", "", ["grad_norm"]],
  ["Learning rate", "", ["lr"]],
  ["Loss", "", ["loss"]],
];
const SCORED = /^(train|validation)\/(reward|success_rate)$/;  // no line leads from one judge's numbers to another's
const SHORT = /^(train|validation|debug|seconds|credit)\//;

export async function runPage(name, context) {
  const names = [name, ...(context.query.with ?? "").split(",").filter(Boolean)];
  const runs = names.map((each) => ({ name: each, next: 0, rows: [] }));
  const view = { smooth: Number(context.query.smooth ?? 0), log: context.query.log === "1", axis: ["hours", "tokens"].find((axis) => axis === context.query.x) ?? "step" };
  const head = el("div", { class: "head" });
  const now = el("div", {});
  const grid = el("div", { class: "grid" });
  const hint = el("p", { class: "hint" });
  const charts = new Map();
  let large = null;  // {key, made}: the chart that fills the window
  const own = names.length > 1 ? null : notesPanel(name);
  const axes = el("span");
  const choose = (axis) => {
    view.axis = axis;
    history.replaceState(null, "", address(["run", name], { ...context.query, x: axis === "step" ? "" : axis }));
    axes.replaceChildren(axisChoice(axis, choose));
    draw();
  };
  axes.append(axisChoice(view.axis, choose));

  const slider = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: view.smooth, oninput: (event) => { view.smooth = Number(event.target.value); draw(); } });
  const log = el("input", { type: "checkbox", checked: view.log, onchange: (event) => { view.log = event.target.checked; draw(); } });
  const zeros = el("details", { class: "others", hidden: true }, el("summary", {}), el("div", { class: "grid" }));
  const others = el("details", { class: "others" }, el("summary", {}, "all metrics"), el("div", { class: "grid" }));
  for (const folded of [zeros, others]) folded.addEventListener("toggle", () => draw());
  const page = el("section", {}, head, own?.box, now,
    el("p", { class: "actions" }, axes, el("label", {}, "smoothing ", slider), el("label", {}, log, " log axes"),
      el("a", { class: "button", href: address(["run", name, "episodes"]) }, "episodes"),
      el("a", { class: "button", href: address(["run", name, "tasks"]) }, "held-out tasks"),
      el("a", { class: "button", href: address(["run", name, "rewards"]) }, "rewards"),
      el("a", { class: "button", href: address(["run", name, "config"], { with: names[1] }) }, names.length > 1 ? "compare configs" : "config")),
    hint, grid, el("p", { class: "hint" }, "A click on a curve opens that step's episodes."), zeros, others);

  function lines(wanted, curves) {
    const found = [];
    const places = runs.map((run) => placesOf(run.rows, view.axis));
    runs.forEach((run, index) => {
      const belongs = (each) => Object.keys(curves[index]).filter((metric) => metric === each || (each.endsWith("/") && metric.startsWith(each)));
      for (const metric of wanted.flatMap(belongs)) {
        const label = wanted.length === 1 && runs.length > 1 ? run.name : `${runs.length > 1 ? `${run.name} ` : ""}${wanted.length === 1 && !wanted[0].endsWith("/") ? metric : metric.replace(wanted.some((each) => each.startsWith("validation")) ? /$^/ : SHORT, "")}`;
        const parts = byJudge(curves[index][metric], SCORED.test(metric) ? changesOfJudge(run.rows) : []);
        parts.forEach((points, part) => found.push({
          run: index, metric, series: parts.length > 1 ? `${metric} ${part}` : metric, label: parts.length > 1 ? `${label}, judge ${part + 1}` : label, points, places: places[index],
          sparse: metric.startsWith("validation/"),
        }));
      }
    });
    const series = [...new Set(found.map((line) => line.series))];
    const several = runs.length > 1;  // then a colour is a run's, in every chart
    return found.map((line) => ({ ...line, colour: several ? line.run : series.indexOf(line.series), dash: several ? series.indexOf(line.series) : 0 }));
  }

  const about = (made) => made.metrics.map(definition).filter(Boolean).join("\n");
  const flat = (found) => found.every((line) => [...line.points.values()].every((value) => value === 0));

  function chart(key, title, unit, wanted, curves, place = null) {
    const found = lines(wanted, curves);
    let made = charts.get(key);
    if (!found.length) return;
    const into = place ?? (flat(found) ? zeros.lastChild : grid);
    const open = (step) => context.go(address(["run", name, "episodes"], { step }));
    if (!made) {
      made = new Chart(title, unit, open, { buttons: el("button", { "aria-label": `enlarge ${title}`, title: "over the whole window", onclick: () => enlarge() }, "⤢") });
      charts.set(key, made);
      explain(made.caption, () => about(made));
    }
    const enlarge = () => {
      large = { key, made: new Enlarged(title, unit, { open, axis: view.axis, choose, file: names.join(" "), close: () => { large = null; } }) };
      explain(large.made.chart.caption, () => about(made));
      draw();
    };
    made.metrics = [...new Set(found.map((line) => line.metric))];
    const shown = { ...view, marks: [...changesOfScorer(runs[0].rows), ...changesOfJudge(runs[0].rows).map((step) => [step, "the judge changed"])] };
    if (large?.key === key) large.made.draw(found, shown);
    into.append(made.box);  // also what is there already: their order is that of the subjects
    if (into !== zeros.lastChild || zeros.open) made.draw(found, shown);
  }

  function draw() {
    const curves = runs.map((run) => curvesOf(run.rows));
    const listed = new Set(SUBJECTS.flatMap(([, , wanted]) => wanted));
    for (const [title, unit, wanted] of SUBJECTS) chart(title, title, unit, wanted, curves);
    const folded = [...zeros.lastChild.children].map((box) => box.querySelector("figcaption > span").textContent);
    zeros.hidden = !folded.length;
    zeros.firstChild.textContent = `always 0: ${folded.join(", ")}`;
    if (others.open) {
      const rest = new Set(curves.flatMap((each) => Object.keys(each)).filter((metric) => !listed.has(metric) && !metric.startsWith("seconds/")));
      for (const metric of [...rest].sort()) chart(`all ${metric}`, metric, "", [metric], curves, others.lastChild);
    }
    const empty = runs.every((run) => !run.rows.length);
    hint.textContent = empty ? "Nothing measured yet: a run writes its first numbers when its first step or validation is done." : "";
    others.hidden = empty;
  }

  async function refresh() {
    const status = await get(`run/${path(name)}`);
    head.replaceChildren(...header(status, name, names));
    own?.show(status.notes);
    const panel = await get(`live/${path(name)}`).then(nowPanel, (error) => el("p", { class: "hint" }, spelled(error.message)));
    now.replaceChildren(...[panel].filter(Boolean));
    let news = false;
    for (const run of runs) {
      const found = await get(`metrics/${path(run.name)}`, { start: run.next });
      if (found.reset) run.rows = [];
      run.rows.push(...found.rows);
      run.next = found.next;
      news ||= found.rows.length > 0 || found.reset;
    }
    if (news && page.isConnected) draw();
  }

  page.addEventListener("shown", draw);
  const resize = () => { charts.forEach((made) => made.resize()); large?.made.chart.resize(); };
  addEventListener("resize", resize);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  context.onLeave(() => {
    removeEventListener("resize", resize);
    dark.removeEventListener("change", draw);
    large?.made.box.close();
    charts.forEach((made) => made.destroy());
  });
  await refresh();
  context.every(2000, refresh);
  return page;
}

function header(status, name, names) {
  const proof = status.proof;
  const wrong = ["failed", "stopped", "interrupted"].includes(status.state);
  return [
    el("h1", {}, spelled(names.join(" · "))),
    el("p", { class: "facts" }, badge(status.state, stateKind(status.state)),
      status.state === "running" && status.phase ? ` ${status.phase}` : "",
      ` · step ${number(status.step)}${status.steps ? ` of ${number(status.steps)}` : ""}`,
      ` · reward ${number(status["train/reward"] ?? status["debug/reward"])}${status.reward_over ? ` ${status.reward_over}` : ""}`,
      ` · held out ${status.held_out ?? number(null)}`,
      ` · began ${ago(status.started)}`, status.updated && status.started ? `, ${seconds(status.updated - status.started)} long` : "",
      proof ? [" · ", badge(proof.ok ? `proven: ${number(proof.episodes)} episodes` : "proof failed", proof.ok ? "good" : "bad")] : null),
    status.learned_nothing ? el("p", { class: "note failed" }, badge("learned nothing", "bad"), " ", spelled(status.learned_nothing)) : null,
    status.gamed ? el("p", { class: "note failed" }, badge("rewards gamed?", "bad"), " ", spelled(status.gamed)) : null,
    status.problem ? prose(status.problem, { class: "note failed" }) : null,
    status.failed ? el("p", { class: "facts" }, el("a", { href: address(["run", name, "episodes"], { status: "failed" }) }, `${number(status.failed)} failed ${status.failed === 1 ? "episode" : "episodes"}`)) : null,
    status.log ? el("details", { class: "log", open: wrong && !status.problem }, el("summary", {}, "the log's end"), el("pre", {}, spelled(status.log))) : null,
  ].filter(Boolean);
}
