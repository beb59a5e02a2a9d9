// The episodes of one task in one step, side by side with what each is worth to training.

import { badge, el, number, prose, rewardBadge, spelled } from "./dom.js";
import { get, path } from "./data.js";
import { address } from "./address.js";
import { contents } from "./transcript.js";

export async function groupPage(run, context) {
  const { step, split, task } = context.query;
  const { rows } = await get(`episodes/${path(run)}`, { step, split, task, sort: "repeat", limit: 64 });
  const pages = await Promise.all(rows.map((row) => get(`episode/${row.uuid}/of/${path(run)}`)));
  const chosen = [];
  const compare = el("a", { class: "button", hidden: true }, "compare the two");
  const pick = (uuid, on) => {
    if (on) chosen.push(uuid); else chosen.splice(chosen.indexOf(uuid), 1);
    compare.hidden = chosen.length !== 2;
    compare.setAttribute("href", address(["run", run, "episode", chosen[0] ?? ""], { with: chosen[1] }));
  };
  const scored = rows.filter((row) => row.reward !== null);
  const mean = scored.reduce((sum, row) => sum + row.reward, 0) / (scored.length || 1);
  return el("section", {},
    el("h1", {}, spelled(rows[0]?.query || task || "group")),
    el("p", { class: "facts" }, `step ${step} · ${split} · ${rows.length} episodes · ${scored.length} scored, mean reward ${number(scored.length ? mean : null)} `, compare),
    rows.length ? null : el("p", { class: "hint" }, "No episode of this group is recorded."),
    el("div", { class: "columns" }, rows.map((row, index) => {
      const page = pages[index];
      const last = [...page.calls].reverse().find((call) => call.reply !== null);
      return el("article", { class: "card", "data-row": row.uuid },
        el("p", {}, el("input", { type: "checkbox", "aria-label": `choose attempt ${row.repeat}`, onchange: (event) => pick(row.uuid, event.target.checked) }),
          " ", el("a", { href: address(["run", run, "episode", row.uuid]) }, `attempt ${row.repeat}`), " ", rewardBadge(row.reward, row.success), " ",
          badge(`advantage ${number(row.advantage)}`, row.advantage > 0 ? "good" : row.advantage < 0 ? "bad" : "mute")),
        row.failure ? el("p", {}, badge(row.failure, "bad")) : null,
        last ? contents(page.messages[last.reply].content || JSON.stringify(page.messages[last.reply].tool_calls ?? "")) : el("p", { class: "hint" }, "no reply"),
        el("p", { class: "hint" }, `${row.calls} ${row.calls === 1 ? "call" : "calls"}, ${row.tokens} tokens`));
    })));
}
