// A person's own words about a run: tags, and a note.

import { badge, el, prose, spelled } from "./dom.js";
import { isFrozen, path, put } from "./data.js";

export const tagBadges = (notes) => notes.tags.map((tag) => badge(tag));

// {box, show(notes)}: what is kept, and on request a form in its place; what is being written is not replaced.
export function notesPanel(run) {
  const box = el("div", { class: "notes" });
  let kept = { note: "", tags: [], edit: 0 };

  function read() {
    const edit = isFrozen ? null : el("button", { class: "more", onclick: write }, kept.edit ? "edit" : "add a note or tags");
    box.replaceChildren(...[...tagBadges(kept), edit, kept.note ? prose(kept.note) : null].filter(Boolean));
  }

  function write() {
    const tags = el("input", { value: kept.tags.join(", "), placeholder: "tags, with commas between them", "aria-label": "tags" });
    const note = el("textarea", { rows: 4, placeholder: "what this run is about, what came of it", "aria-label": "note" }, kept.note);
    const wrong = el("span", { class: "hint", role: "alert" });
    const save = async () => {
      try {
        kept = await put(`notes/${path(run)}`, { tags: tags.value.split(","), note: note.value, edit: kept.edit });
        read();
      } catch (error) { wrong.replaceChildren(...spelled(error.message)); }
    };
    box.replaceChildren(el("form", { onsubmit: (event) => { event.preventDefault(); save(); } }, tags, note,
      el("p", { class: "actions" }, el("button", {}, "keep"), el("button", { type: "button", onclick: read }, "leave as it was"), wrong)));
    tags.focus();
  }

  read();
  return { box, show: (notes) => {
    if (box.querySelector("form") || notes.edit === kept.edit) return;
    kept = notes;
    read();
  } };
}
