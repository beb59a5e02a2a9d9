// Turns as a chat: each message once, in the order it was first used, each reply under the call that gave it.

import { badge, el, number, prose, seconds, shortened, spelled } from "./dom.js";

export function transcript(page) {
  const shown = new Set();
  const turns = [];
  for (const call of page.calls) {
    for (const index of call.messages) if (!shown.has(index)) { shown.add(index); turns.push(message(page.messages[index])); }
    if (call.terms.raw_prompt) turns.push(el("div", { class: "turn user" }, el("div", { class: "who" }, call.terms.raw_prompt.after ? "raw prompt, goes on" : "raw prompt"), prose(call.terms.raw_prompt.text)));
    if (call.reply !== null && !shown.has(call.reply)) { shown.add(call.reply); turns.push(message(page.messages[call.reply], call)); }
    if (call.error) turns.push(el("div", { class: "turn failed", "data-row": `call ${call.index}` }, el("div", { class: "who" }, `call ${call.index} failed`), prose(call.error)));
    else if (call.reply === null) turns.push(el("div", { class: "turn failed" }, el("div", { class: "who" }, `call ${call.index}: ${call.finish}, without a reply`)));
  }
  if (!turns.length) turns.push(el("p", { class: "hint" }, "The agent has called no model in this episode."));
  return el("div", { class: "chat" }, turns);
}

function message(said, call) {
  const role = String(said.role ?? "?");
  const calls = (said.tool_calls ?? []).map((each) => el("div", { class: "toolcall" },
    el("b", {}, spelled(String(each.function?.name ?? "?"))), prose(pretty(each.function?.arguments), { class: "code" })));
  const marks = call ? [el("span", { class: "mark", id: `call-${call.index}` }, `call ${call.index} · ${number(call.reply_tokens)} tokens · ${call.finish} · ${seconds(call.ended - call.started)}`),
    call.agent !== "default" ? badge(call.agent) : null, call.fork ? badge(`forked: ${call.fork}`, "warn") : null, call.trained ? null : badge("not trained", "mute"), call.finish === "length" ? badge(`cut by ${call.extra.cut_by ?? "a limit on tokens"}`, "warn") : null] : [];
  return el("div", { class: `turn ${["system", "user", "assistant", "tool", "developer"].includes(role) ? role : "other"}`, "data-row": call ? `call ${call.index}` : role },
    el("div", { class: "who" }, spelled(role + (said.name ? ` ${said.name}` : "")), " ", marks),
    said.reasoning_content ? el("details", { class: "thinking", open: true }, el("summary", {}, "thinking"), prose(said.reasoning_content)) : null,
    contents(said.content), calls);
}

// What a message says: text, or a list of texts and images. An image is shown if the record holds it; nothing is fetched.
export function contents(content) {
  return typeof content === "string" || !content ? [prose(content ?? "")] : [content].flat().map(part);
}

function part(each) {
  if (each?.type === "text") return prose(each.text ?? "");
  const url = String(each?.image_url?.url ?? each?.image_url ?? "");
  if (each?.type === "image_url" && /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/.test(url)) return el("img", { src: url, alt: "an image of the conversation", class: "shot", loading: "lazy" });
  if (each?.type === "image_url") return prose(`[image] ${shortened("", url)}`);
  return prose(each, { class: "code" });
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 1); } catch { return String(text ?? ""); }
}
