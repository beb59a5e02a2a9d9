// The router: an address after the # is a page; keys move and open.

import { el } from "./dom.js";
import { address } from "./address.js";
import { frozenNote, frozenRun, isFrozen } from "./data.js";
import { runsPage } from "./runs.js";
import { runPage } from "./run.js";
import { episodesPage } from "./episodes.js";
import { episodePage } from "./episode.js";
import { groupPage } from "./group.js";
import { configPage } from "./config.js";
import { tasksPage } from "./tasks.js";
import { rewardsPage } from "./rewards.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
let leave = () => {};
let drawn = 0;

function here() {
  const [path, tail] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path ? path.split("/").map(decodeURIComponent) : [], query: Object.fromEntries(new URLSearchParams(tail ?? "")) };
}

function trail(parts) {
  const links = [];
  if (parts[0] === "run") {
    const run = parts[1];
    links.push(el("a", { href: address(["run", run]) }, run));
    for (const tab of ["episodes", "tasks", "rewards", "config"]) {
      const open = parts[2] === tab || (tab === "episodes" && ["episode", "group"].includes(parts[2]));
      links.push(el("a", { href: address(["run", run, tab]), class: open ? "tab open" : "tab" }, tab));
    }
  }
  document.getElementById("trail").replaceChildren(...links);
}

async function draw() {
  leave();
  leave = () => {};
  document.getElementById("tip").hidden = true;
  const turn = ++drawn;
  const { parts, query } = here();
  trail(parts);
  document.title = ["ajet", ...parts.slice(1)].join(" · ");
  const context = {
    query,
    go: (next) => { location.hash = next; },
    every: (milliseconds, work) => {
      if (isFrozen) return;
      const timer = setInterval(async () => {
        if (document.hidden) return;
        try { await work(); live.textContent = "connected"; live.className = "on"; }
        catch (error) { live.textContent = `not reachable: ${error.message}`; live.className = "off"; }
      }, milliseconds);
      const before = leave;
      leave = () => { clearInterval(timer); before(); };
    },
    onLeave: (work) => { const before = leave; leave = () => { work(); before(); }; },
  };
  try {
    const [kind, run, tab, which] = parts;
    const page = kind !== "run" ? await runsPage(context)
      : tab === "episodes" ? await episodesPage(run, context)
      : tab === "episode" ? await episodePage(run, which, context)
      : tab === "group" ? await groupPage(run, context)
      : tab === "config" ? await configPage(run, context)
      : tab === "tasks" ? await tasksPage(run, context)
      : tab === "rewards" ? await rewardsPage(run, context)
      : await runPage(run, context);
    if (turn !== drawn) return;
    main.replaceChildren(page);
    page.dispatchEvent(new Event("shown"));
  } catch (error) {
    if (turn === drawn) main.replaceChildren(el("p", { class: "hint" }, error.message));
  }
  live.textContent = isFrozen ? frozenNote : "";
}

function move(step) {
  const rows = [...main.querySelectorAll("[data-row]")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  rows[at]?.classList.remove("at");
  next.classList.add("at");
  next.scrollIntoView({ block: "nearest" });
}

addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;  // it has keys of its own
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else up();
  } else if (typing || event.metaKey || event.ctrlKey || event.altKey) return;
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "Enter") main.querySelector("[data-row].at a[href]")?.click();
  else if (event.key === "/") {
    const field = main.querySelector("[data-search]");
    if (field) { event.preventDefault(); field.focus(); }
  }
});

function up() {
  const { parts, query } = here();
  if (parts[2] === "episode" || parts[2] === "group") location.hash = address(["run", parts[1], "episodes"]);
  else if (parts[2]) location.hash = address(["run", parts[1]]);
  else if (parts[0]) location.hash = "#/";
  else if (Object.keys(query).length) location.hash = "#/";
}

addEventListener("hashchange", draw);
if (isFrozen && !location.hash) history.replaceState(null, "", address(["run", frozenRun]));  // it has no other
draw();
