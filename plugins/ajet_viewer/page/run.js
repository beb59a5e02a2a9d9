// A run: what it does now, and its curves, alone or laid over other runs'.

import { ago, badge, el, number, prose, seconds, spelled } from "./dom.js";
import { get, path } from "./data.js";
import { address } from "./address.js";
import { nowPanel } from "./now.js";
import { Chart, byJudge, changesOfJudge, changesOfScorer, curvesOf, meanOf, placesOf } from "./charts.js";
import { evaluationPage } from "./evaluation.js";
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
  ["KL to the reference model", " nats", ["kl"]],
  ["Mismatch of engine and trainer", " nats", ["mismatch_kl"]],
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
// The same of runs that learn from given replies: nothing is played, so nothing has a reward or fails.
const GIVEN_SUBJECTS = [
  ["Loss", " nats", ["loss", "validation/loss"]],
  ["Chosen preferred over rejected", "", ["dpo/accuracy", "validation/dpo/accuracy"]],
  ["Margin of chosen over rejected", "", ["dpo/margin", "validation/dpo/margin", "dpo/chosen", "dpo/rejected"]],
  ["Learning rate", "", ["lr"]],
  ["Gradient norm", "", ["grad_norm"]],
  ["Tokens a step", "", ["train/trained_tokens", "computed_tokens"]],
  ["Entropy", " nats", ["entropy"]],
  ["Seconds a step", " s", ["seconds/"]],
];
const REWARDS_TITLE = "Reward, of the scored", SUCCESS_TITLE = "Success";
const SHORT = /^(train|validation|debug|seconds|credit)\//;

export async function runPage(name, context) {
  const names = [name, ...(context.query.with ?? "").split(",").filter(Boolean)];
  const runs = names.map((each) => ({ name: each, next: 0, rows: [], off: [], seeds: null, seed: null }));
  const first = await get(`run/${path(name)}`);
  if (first.kind === "eval" && names.length === 1) return evaluationPage(name, context, (status) => header(status, name, names));
  const view = { smooth: Number(context.query.smooth ?? 0), log: context.query.log === "1", mean: null, axis: ["hours", "tokens"].find((axis) => axis === context.query.x) ?? "step" };
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
  const mean = el("input", { type: "checkbox", onchange: (event) => { view.mean = event.target.checked; draw(); } });
  const means = el("label", { hidden: true }, mean, " mean over seeds");
  const siblings = el("span");
  const played = el("span", { class: "actions" },
    el("a", { class: "button", href: address(["run", name, "tasks"]) }, "held-out tasks"),
    el("a", { class: "button", href: address(["run", name, "rewards"]) }, "rewards"));
  const zeros = el("details", { class: "others", hidden: true }, el("summary", {}), el("div", { class: "grid" }));
  const others = el("details", { class: "others" }, el("summary", {}, "all metrics"), el("div", { class: "grid" }));
  for (const folded of [zeros, others]) folded.addEventListener("toggle", () => draw());
  const page = el("section", {}, head, own?.box, now,
    el("p", { class: "actions" }, axes, el("label", {}, "smoothing ", slider), el("label", {}, log, " log axes"), means,
      el("a", { class: "button", href: address(["run", name, "episodes"]) }, "episodes"), played,
      el("a", { class: "button", href: address(["run", name, "config"], { with: names[1] }) }, names.length > 1 ? "compare configs" : "config"), siblings),
    hint, grid, el("p", { class: "hint" }, "A click on a curve opens that step's episodes."), zeros, others);

  // The runs as they are drawn: those that differ in their seed only together, the others alone.
  function parties(together = view.mean) {
    const by = new Map();
    runs.forEach((run, index) => {
      const again = runs.some((other) => other !== run && other.seeds === run.seeds && other.seed === run.seed);
      const key = together && run.seeds && !again ? run.seeds : `alone ${index}`;
      by.set(key, [...(by.get(key) ?? []), index]);
    });
    return [...by.values()].map((members) => ({ members, label: members.length > 1 ? `${beginning(members.map((index) => runs[index].name))} (${members.length} seeds)` : runs[members[0]].name }));
  }

  function lines(wanted, curves) {
    const found = [];
    const places = runs.map((run) => placesOf(run.rows, view.axis));
    const shown = parties();
    shown.forEach(({ members, label: party }, at) => {
      const has = (metric) => members.every((index) => metric in curves[index] && !runs[index].off.includes(metric));
      const belongs = (each) => Object.keys(curves[members[0]]).filter((metric) => (metric === each || (each.endsWith("/") && metric.startsWith(each))) && has(metric));
      for (const metric of wanted.flatMap(belongs)) {
        const label = wanted.length === 1 && shown.length > 1 ? party : `${runs.length > 1 ? `${party} ` : ""}${wanted.length === 1 && !wanted[0].endsWith("/") ? metric : metric.replace(wanted.some((each) => each.startsWith("validation")) ? /$^/ : SHORT, "")}`;
        const common = { run: at, metric, series: metric, label, sparse: metric.startsWith("validation/") };
        if (members.length === 1) {
          const index = members[0];
          const parts = byJudge(curves[index][metric], SCORED.test(metric) ? changesOfJudge(runs[index].rows) : []);
          parts.forEach((points, part) => found.push({
            ...common, points, places: places[index],
            ...(parts.length > 1 ? { series: `${metric} ${part}`, label: `${label}, judge ${part + 1}` } : {}),
          }));
          continue;
        }
        const over = meanOf(members.map((index) => ({ points: curves[index][metric], places: places[index] })));
        if (!over.mean.size) continue;
        found.push({ ...common, points: over.mean, places: over.places, band: true },
          { ...common, label: `${label}, lowest`, points: over.low, places: over.places, bound: true },
          { ...common, label: `${label}, highest`, points: over.high, places: over.places, bound: true });
      }
    });
    const series = [...new Set(found.map((line) => line.series))];
    const several = shown.length > 1;  // then a colour is a run's, in every chart
    return found.map((line) => ({ ...line, colour: several ? line.run : series.indexOf(line.series), dash: several ? series.indexOf(line.series) : 0 }));
  }

  // Whether success is said again by the reward in every run and split that tells it.
  function successIsReward(curves) {
    const equal = (one, other) => one && one.size === other.size && [...other].every(([step, value]) => Math.abs((one.get(step) ?? NaN) - value) < 1e-9);
    const told = curves.flatMap((each) => ["train", "validation", "debug"].filter((split) => each[`${split}/success_rate`]).map((split) => [each, split]));
    return told.length > 0 && told.every(([each, split]) => equal(each[`${split}/reward`], each[`${split}/success_rate`]));
  }

  const about = (made) => made.metrics.map(definition).filter(Boolean).join("\n");
  const flat = (found) => found.every((line) => [...line.points.values()].every((value) => value === 0));

  function chart(key, title, unit, wanted, curves, place = null) {
    const found = lines(wanted, curves);
    let made = charts.get(key);
    if (!found.length) { made?.box.remove(); return; }
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
    const subjects = runs.every((run) => run.rows.some((row) => "train/rows" in row)) ? GIVEN_SUBJECTS : SUBJECTS;
    const listed = new Set([...SUBJECTS, ...GIVEN_SUBJECTS].flatMap(([, , wanted]) => wanted));
    const twice = successIsReward(curves);
    for (const [title, unit, wanted] of subjects) chart(title, title, unit, twice && title === SUCCESS_TITLE ? [] : wanted, curves);
    const rewards = charts.get(REWARDS_TITLE);
    if (rewards) rewards.caption.textContent = twice ? "Reward, of the scored (equal to success)" : REWARDS_TITLE;
    played.hidden = subjects === GIVEN_SUBJECTS;
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
    const [status, ...others] = await Promise.all(names.map((each) => get(`run/${path(each)}`)));
    [status, ...others].forEach((each, index) => { runs[index].off = each.off ?? []; });
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

  // Which runs differ in their seed only.
  async function findSeeds() {
    const all = (await get("runs")).runs;
    for (const run of runs) {
      const found = all.find((each) => each.name === run.name);
      run.seeds = found?.seeds ?? null;
      run.seed = found?.seed ?? null;
    }
    const largest = Math.max(...parties(true).map(({ members }) => members.length));
    means.hidden = largest < 2;
    view.mean = mean.checked = largest > 2;  // of two runs the lines themselves say as much
    const others = all.filter((each) => each.seeds && each.seeds === runs[0].seeds && each.seed !== runs[0].seed && !names.includes(each.name)).map((each) => each.name);
    if (others.length && names.length === 1) siblings.replaceChildren(el("a", { class: "button", href: address(["run", name], { with: others.join(",") }) }, `with its ${others.length === 1 ? "other seed" : `${others.length} other seeds`}`));
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
  await findSeeds();
  await refresh();
  context.every(2000, refresh);
  return page;
}

// What names begin with in common, without the signs that then end it.
function beginning(names) {
  let length = 0;
  while (length < names[0].length && names.every((each) => each[length] === names[0][length])) length += 1;
  return names[0].slice(0, length).replace(/[\W_]+(seed|s)?[\W_]*$/i, "") || names[0];
}

function header(status, name, names) {
  const proof = status.proof;
  const wrong = ["failed", "stopped", "interrupted"].includes(status.state);
  return [
    el("h1", {}, spelled(names.join(" · "))),
    el("p", { class: "facts" }, badge(status.state, stateKind(status.state)),
      status.state === "running" && status.phase ? ` ${status.phase}` : "",
      ` · step ${number(status.step)}${status.steps ? ` of ${number(status.steps)}` : ""}`,
      ...(status.kind === "eval" ? [] : status.given ? [` · loss ${number(status.loss)}`, ` · held out ${status["validation/loss"] === null ? number(null) : `loss ${number(status["validation/loss"])}`}`] : [
        ` · reward ${number(status["train/reward"] ?? status["debug/reward"])}${status.reward_over ? ` ${status.reward_over}` : ""}`,
        ` · held out ${status.held_out ?? number(null)}`]),
      ` · began ${ago(status.started)}`, status.updated && status.started ? `, ${seconds(status.updated - status.started)} long` : "",
      proof ? [" · ", badge(proof.ok ? `proven: ${number(proof.episodes)} episodes` : "proof failed", proof.ok ? "good" : "bad")] : null),
    status.learned_nothing ? el("p", { class: "note failed" }, badge("learned nothing", "bad"), " ", spelled(status.learned_nothing)) : null,
    status.gamed ? el("p", { class: "note failed" }, badge("rewards gamed?", "bad"), " ", spelled(status.gamed)) : null,
    status.problem ? prose(status.problem, { class: "note failed" }) : null,
    status.failed ? el("p", { class: "facts" }, el("a", { href: address(["run", name, "episodes"], { status: "failed" }) }, `${number(status.failed)} failed ${status.failed === 1 ? "episode" : "episodes"}`)) : null,
    status.log ? el("details", { class: "log", open: wrong && !status.problem }, el("summary", {}, "the log's end"), el("pre", {}, spelled(status.log))) : null,
  ].filter(Boolean);
}
