// Where the page's data comes from: the server that it came from, or, in a frozen file, what is written in it.

const frozen = (() => {
  const node = document.getElementById("frozen");
  return node ? JSON.parse(node.textContent) : null;
})();

export const isFrozen = frozen !== null;
export const frozenNote = frozen?.note ?? "";
export const frozenRun = frozen?.runs.runs[0]?.name ?? "";

export async function get(path, query = {}) {
  if (frozen) return fromFrozen(path, query);
  const url = new URL(`api/${path}`, document.baseURI.split("#")[0]);
  for (const [name, value] of Object.entries(query)) if (value !== "" && value !== undefined) url.searchParams.set(name, value);
  const answer = await fetch(url);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? `error ${answer.status}`);
  return body;
}

// Replace something on the server, which says why it does not.
export async function put(wanted, value) {
  const url = new URL(`api/${wanted}`, document.baseURI.split("#")[0]);
  const answer = await fetch(url, { method: "PUT", headers: { "content-type": "application/json" }, body: JSON.stringify(value) });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? `error ${answer.status}`);
  return body;
}

export const rawLink = (run, uuid) => `api/raw/${encodeURIComponent(uuid)}/of/${path(run)}`;
export const path = (run) => run.split("/").map(encodeURIComponent).join("/");

function fromFrozen(wanted, query) {
  const [kind, ...rest] = wanted.split("/");
  const run = decodeURIComponent(rest.at(-1) ?? "");
  if (kind === "episodes") return filtered(frozen.episodes, query);
  if (kind === "metrics") return { ...frozen.metrics, rows: Number(query.start ?? 0) ? [] : frozen.metrics.rows };
  if (kind === "live") return null;  // a copy does nothing any more
  if (kind === "episode") return found(frozen.pages[rest[0]]);
  if (kind === "tokens") return found(frozen.tokens[rest[0]]?.[Number(query.line ?? 0)]);
  return found({ runs: frozen.runs, run: frozen.run, config: frozen.config, tasks: frozen.tasks, rewards: frozen.rewards }[kind], run);
}

function found(value) {
  if (value === undefined) throw new Error("This file does not hold that.");
  return value;
}

const withoutImages = (text) => text?.replace(/(data:[\w.+-]+\/[\w.+-]+;base64,)[A-Za-z0-9+/=]+/g, "$1");

function filtered(rows, query) {
  const within = (given, value) => {
    const [low, high] = given.includes("..") ? given.split("..") : [given, given];
    return value !== null && value >= Number(low || -Infinity) && value <= Number(high || Infinity);
  };
  const text = (query.text ?? "").toLowerCase();
  const match = rows.filter((row) =>
    (!query.step || within(query.step, row.step)) && (!query.reward || within(query.reward, row.reward)) &&
    (!query.split || row.split === query.split) && (!query.task || row.task === query.task) &&
    (!query.agent || row.agents.includes(query.agent)) &&
    (!query.status || row.status === query.status || (query.status === "no score" && row.reward === null)) &&
    (!text || [row.query, row.task, row.uuid, row.failure, withoutImages(JSON.stringify(frozen.pages[row.uuid]))]
      .some((field) => (field ?? "").toLowerCase().includes(text))));
  const sort = query.sort || "-step";
  const key = sort.replace("-", "");
  const sign = sort.startsWith("-") ? -1 : 1;
  match.sort((a, b) => (a[key] === null) - (b[key] === null) || sign * (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0));
  const offset = Number(query.offset ?? 0);
  return { rows: match.slice(offset, offset + Number(query.limit ?? 100)), total: match.length, complete: true, pending: 0, damaged: 0 };
}
