// One episode, or two of one task side by side.

import { badge, el, number, prose, rewardBadge, seconds, spelled } from "./dom.js";
import { get, isFrozen, path, rawLink } from "./data.js";
import { address } from "./address.js";
import { transcript } from "./transcript.js";
import { toolUses, tree, waterfall } from "./tree.js";
import { tokenView } from "./tokens.js";

export async function episodePage(run, uuid, context) {
  const uuids = [uuid, context.query.with].filter(Boolean);
  const [pages, status] = await Promise.all([
    Promise.all(uuids.map((each) => get(`episode/${encodeURIComponent(each)}/of/${path(run)}`))),
    get(`run/${path(run)}`),
  ]);
  return el("section", {}, head(run, pages[0], pages.length > 1),
    el("div", { class: pages.length > 1 ? "pair" : "" }, pages.map((page) => one(run, page, status.proof))));
}

function head(run, page, pair) {
  const query = page.task.main_query || page.task.task_id || page.uuid;
  const group = address(["run", run, "group"], { step: page.step, split: page.split, task: page.task.task_id });
  return [el("h1", {}, spelled(query.slice(0, 300))),
    el("p", { class: "actions" }, el("a", { class: "button", href: group }, "its group"),
      pair || isFrozen ? null : el("a", { class: "button", href: rawLink(run, page.uuid), download: true }, "raw record"))];
}

function one(run, page, proof) {
  const proven = proof !== null && page.uuid.startsWith(proof.episode) && proof.plays.some((play) => play.step === page.step && play.split === page.split);
  const wrong = proof?.wrong.filter((token) => token.episode === page.uuid) ?? [];
  const cut = page.calls.filter((call) => call.finish === "length").length;
  const untrained = Object.entries(page.untrained);
  return el("article", { class: "episode" },
    el("p", { class: "facts" }, rewardBadge(page.verdict?.reward, page.verdict?.success), " ",
      badge(`advantage ${number(page.advantage)}`, page.advantage > 0 ? "good" : page.advantage < 0 ? "bad" : "mute"),
      page.status === "completed" ? null : badge(page.ending ? `${page.status}: ${page.ending.replaceAll("_", " ")}` : page.status, "bad"),
      page.discarded ? badge(`not trained: ${page.discarded.replaceAll("_", " ")}`, "mute") : null, page.checks.map((check) => badge(check, "warn")),
      cut ? badge(`${cut} of ${page.calls.length} replies cut`, "warn") : null,
      wrong.length ? badge("proof failed", "bad") : proven ? badge("proven", "good") : null,
      ` step ${page.step}${page.played_for < page.step && page.split === "train" ? ` (played for ${page.played_for})` : ""} · ${page.split} · attempt ${page.repeat} · ${page.calls.length} calls${page.policy ? ` · policy ${[...new Set(page.policy)].join(" to ")}` : ""} · ${seconds(page.ended - page.started)}`, page.sampler ? [" · sampler ", spelled(page.sampler)] : null),
    page.verdict?.scorer ? el("p", { class: "facts scorers" }, "scored by ", Object.entries(page.verdict.parts).map(([name, score]) => [badge(`${name} ${score === null ? "no score" : number(score)}`, "mute"), " "])) : null,
    page.verdict?.reason ? el("div", { class: "note" }, el("b", {}, "judge: "), prose(page.verdict.reason)) : null,
    page.failure ? el("div", { class: "note failed" }, el("b", {}, spelled(`${page.failure.boundary}: ${page.failure.kind}`)), prose(page.failure.message),
      page.failure.traceback ? el("details", {}, el("summary", {}, "traceback"), prose(page.failure.traceback, { class: "code" })) : null) : null,
    wrong.map((token) => el("p", { class: "note failed" }, `call ${token.call}, position ${token.position}: `, spelled(token.what))),
    untrained.length ? el("p", { class: "hint" }, `sampled and not trained: ${untrained.map(([why, count]) => `${number(count)} tokens (${why.replaceAll("_", " ")})`).join(", ")}`) : null,
    el("h2", {}, "Conversation"), transcript(page),
    el("h2", {}, "Tokens"), tokenView(run, page),
    el("h2", {}, "Branches"), tree(page),
    el("h2", {}, "Time"), waterfall(page), toolUses(page),
    el("details", {}, el("summary", {}, "task, tools, metadata"),
      prose(page.task, { class: "code" }), prose(page.tools, { class: "code" }), prose(page.metadata, { class: "code" }), page.printed ? prose(page.printed, { class: "code" }) : null, prose(page.metrics, { class: "code" })));
}
