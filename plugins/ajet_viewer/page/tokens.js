// A line of tokens, however long: blocks that are filled while they are near the window and emptied when they are not.

import { el, number } from "./dom.js";
import { get, path } from "./data.js";

const BLOCK = 128;
const PIECE = 4096;
const MODES = ["trained / context", "logprob", "advantage", "policy version"];

export function tokenView(run, page, start = 0) {
  if (!page.lines.length) return el("p", { class: "hint" }, "No tokens: a chat engine answered, or the episode ended before a call.");
  const select = el("select", { "aria-label": "colour by", onchange: () => recolour() }, MODES.map((mode) => el("option", {}, mode)));
  const lines = el("select", { "aria-label": "which line of tokens", onchange: () => open(Number(lines.value)) },
    page.lines.map((line, index) => el("option", { value: index, selected: index === start }, `line ${index}: ${line.agent === "default" ? "" : `${line.agent}, `}${number(line.length)} tokens, ${number(line.trained)} trained`)));
  const field = el("div", { class: "tokens", tabindex: 0 });
  const box = el("div", {}, el("p", { class: "actions" }, lines, el("label", {}, "colour by ", select), el("span", { class: "hint", id: "spelling" })), field);
  let observer = null;
  let pieces = new Map();
  let line = 0;

  function piece(index) {
    if (!pieces.has(index)) {
      const at = index * PIECE;
      pieces.set(index, get(`tokens/${page.uuid}/of/${path(run)}`, { line, start: at, stop: at + PIECE }).then((found) => (found.start === at ? found : cut(found, at))));
    }
    return pieces.get(index);
  }

  async function fill(block) {
    const first = Number(block.dataset.first);
    const at = line;
    if (first % PIECE === 0 && !block.childNodes.length) block.append(el("span", { class: "hint" }, "reading tokens …"));
    let found;
    try {
      found = await piece(Math.floor(first / PIECE));
    } catch (error) {
      block.replaceChildren(el("span", { class: "hint" }, error.message));
      return;
    }
    if (at !== line || block.dataset.wanted !== "1") return;
    if (found.text === null) box.querySelector("#spelling").textContent = "ids only: the tokenizer cannot be had here";
    block.piece = found;
    block.replaceChildren(...spans(found, first - found.start, Math.min(first + BLOCK, page.lines[line].length) - found.start, select.selectedIndex, page));
    block.classList.add("full");
    if (!field.style.getPropertyValue("--height") && page.lines[line].length > 2 * BLOCK) field.style.setProperty("--height", `${block.offsetHeight}px`);
  }

  function open(index) {
    line = index;
    pieces = new Map();
    observer?.disconnect();
    observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const block = entry.target;
        block.dataset.wanted = entry.isIntersecting ? "1" : "0";
        if (entry.isIntersecting && !block.classList.contains("full")) fill(block);
        else if (!entry.isIntersecting && block.classList.contains("full")) {
          block.style.minHeight = `${entry.boundingClientRect.height}px`;
          block.classList.remove("full");
          block.replaceChildren();
        }
      }
    }, { root: field, rootMargin: "600px 0px" });
    const blocks = [];
    for (let first = 0; first < page.lines[line].length; first += BLOCK) blocks.push(el("div", { class: "block", "data-first": first }));
    field.replaceChildren(...blocks);
    blocks.forEach((block) => observer.observe(block));
  }

  function recolour() {
    for (const block of field.querySelectorAll(".block.full")) fill(block);
  }

  field.addEventListener("mouseover", (event) => tell(event, page));
  field.addEventListener("mouseleave", () => { document.getElementById("tip").hidden = true; });
  open(start);
  return box;
}

// A frozen file holds a line's tokens in one piece.
function cut(found, at) {
  const part = (list) => list?.slice(at, at + PIECE) ?? null;
  return { start: at, ids: part(found.ids), text: part(found.text), mask: part(found.mask), logprobs: part(found.logprobs), unit: part(found.unit), versions: part(found.versions), borders: found.borders };
}

function spans(found, from, to, mode, page) {
  const borders = new Map(found.borders.map((border) => [border.at - found.start, border]));
  const nodes = [];
  for (let at = from; at < to; at++) {
    const border = borders.get(at);
    if (border) nodes.push(el("span", { class: `border ${border.what}`, title: `${border.what} of call ${border.call}` }, `${border.what === "reply" ? "▸" : "◂"}${border.call}`));
    const text = found.text ? found.text[at] : `⟨${found.ids[at]}⟩`;
    const span = el("span", { class: `t ${shade(found, at, mode, page)}` }, visible(text));
    const many = alike(found, at, to, borders);
    span.at = at;
    span.last = at + many - 1;
    nodes.push(span);
    if (many > 1) nodes.push(el("span", { class: "times", title: "as often as this, one after the other" }, `×${many}`));
    at = span.last;
    if (text.includes("\n")) nodes.push(el("br"));
  }
  return nodes;
}

// How many tokens from here on are shown as one: an image is a mark (<|image_pad|>), repeated for each piece of it.
function alike(found, at, to, borders) {
  if (found.mask[at] || !/^<.+>$/.test(found.text?.[at] ?? "")) return 1;
  let end = at + 1;
  while (end < to && found.ids[end] === found.ids[at] && !found.mask[end] && !borders.has(end)) end++;
  return end - at < 4 ? 1 : end - at;
}

function shade(found, at, mode, page) {
  if (!found.mask[at]) return "context";
  if (mode === 1) return `p${Math.min(9, Math.floor(-found.logprobs[at] / 0.5))}`;
  if (mode === 2) return page.advantage === null ? "trained" : page.advantage > 0 ? "up" : page.advantage < 0 ? "down" : "trained";
  if (mode === 3) return `v${((found.versions[at] % 8) + 8) % 8}`;
  return "trained";
}

export function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (letter) =>
    (letter === "\n" ? "⏎" : letter === "\t" ? "⇥" : letter === "\r" ? "␍" : `‹${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`)).replace(/ /g, "·");
}

function about(found, at, last, page) {
  const text = found.text ? found.text[at] : "";
  const head = `${JSON.stringify(text)}  id ${found.ids[at]}  position ${found.start + at}${last > at ? ` to ${found.start + last}` : ""}`;
  if (!found.mask[at]) return `${head}\ncontext: not trained`;
  const gap = found.unit[at] - found.logprobs[at];
  return `${head}\nlogprob ${found.logprobs[at].toFixed(4)} (p ${Math.exp(found.logprobs[at]).toFixed(4)})`
    + `${Math.abs(gap) > 1e-5 ? `\nat temperature 1: ${found.unit[at].toFixed(4)}, ratio ${Math.exp(gap).toFixed(4)}` : ""}`
    + `\nadvantage ${number(page.advantage)}, policy version ${found.versions[at]}`;
}

function tell(event, page) {
  const span = event.target.closest(".t");
  const tip = document.getElementById("tip");
  tip.hidden = !span;
  if (!span) return;
  tip.textContent = about(span.closest(".block").piece, span.at, span.last, page);
  const box = span.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${box.bottom + tip.offsetHeight + 8 > innerHeight ? box.top - tip.offsetHeight - 4 : box.bottom + 4}px`;
}
