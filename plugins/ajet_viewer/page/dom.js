// Elements, and text that cannot lie: whatever a model wrote becomes a text node, with what is invisible or would turn
// the line around spelled out.

export function el(tag, props = {}, ...children) {
  const svg = ["svg", "path", "circle", "line", "rect", "g"].includes(tag) || props.svg;
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "svg" || value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udc7f]/g;
const SHOWN = 20000;

export function spelled(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    parts.push(text.slice(from, match.index));
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(el("span", { class: "control", title: "an invisible character" }, `U+${code}`));
    from = match.index + match[0].length;
  }
  parts.push(text.slice(from));
  return parts;
}

// Within a value that is shown as JSON: an image's letters say nothing to a reader.
export function shortened(key, value) {
  const long = typeof value === "string" && value.startsWith("data:") && value.length > 200;
  return long ? `${value.slice(0, 40)}… (${value.length.toLocaleString("en")} characters)` : value;
}

// A text of any length: its beginning, and the rest by pieces on request.
export function prose(value, props = {}) {
  const text = typeof value === "string" ? value : JSON.stringify(value, shortened, 1) ?? "";
  const box = el("div", { ...props, class: `prose ${props.class ?? ""}` }, spelled(text.slice(0, SHOWN)));
  let end = Math.min(SHOWN, text.length);
  if (end < text.length) {
    const more = el("button", { class: "more", onclick: () => {
      more.before(...spelled(text.slice(end, end + 10 * SHOWN)));
      end = Math.min(end + 10 * SHOWN, text.length);
      if (end >= text.length) more.remove(); else more.textContent = label();
    } });
    const label = () => `show more (${(text.length - end).toLocaleString("en")} characters)`;
    more.textContent = label();
    box.append(more);
  }
  return box;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${number(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} days`;
}

export const ago = (time) => (time ? `${seconds(Math.max(0, Date.now() / 1000 - time))} ago` : "–");

export function badge(text, kind = "") {
  return el("span", { class: `badge ${kind}` }, spelled(String(text)));
}

export function rewardBadge(reward, success) {
  if (reward === null || reward === undefined) return badge("no score", "mute");
  return badge(`reward ${number(reward)}`, success === true ? "good" : success === false ? "bad" : "");
}
