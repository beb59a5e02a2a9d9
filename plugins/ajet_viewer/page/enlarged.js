// One chart over the whole window, with its numbers and its picture to take along.

import { el } from "./dom.js";
import { AXES, Chart } from "./charts.js";

export const axisChoice = (chosen, choose) => el("label", {}, "x by ", el("select", { "aria-label": "x by", onchange: (event) => choose(event.target.value) },
  Object.keys(AXES).map((axis) => el("option", { value: axis, selected: axis === chosen }, axis))));

function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// `close` is called when it has gone, `choose` with the axis that was picked.
export class Enlarged {
  constructor(title, unit, { open, axis, choose, close, file }) {
    const name = `${file} ${title}`.replace(/[^\w.-]+/g, "_");
    this.chart = new Chart(title, unit, (step) => { this.box.close(); open(step); }, {
      height: () => Math.max(160, this.box.clientHeight - this.chart.box.offsetHeight + this.chart.hole.clientHeight - 60 - 22 * Math.min(8, this.lines)),
      buttons: [axisChoice(axis, choose),
        el("button", { onclick: () => save(new Blob([this.chart.csv()], { type: "text/csv" }), `${name}.csv`) }, "CSV"),
        el("button", { onclick: () => this.chart.picture().toBlob((blob) => save(blob, `${name}.png`)) }, "PNG"),
        el("button", { "aria-label": "close", onclick: () => this.box.close() }, "×")],
    });
    this.lines = 1;
    this.box = el("dialog", { class: "large", "aria-label": title }, this.chart.box);
    this.box.addEventListener("close", () => { this.chart.destroy(); this.box.remove(); close(); });
    document.body.append(this.box);
    this.box.showModal();
  }

  draw(lines, view) {
    this.lines = lines.length;
    this.chart.draw(lines, view);
  }
}
