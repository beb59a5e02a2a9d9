"""`ajet audit`: traces updates to episodes and back, and compares a run's files with the chain.

The chain is a file with one entry ("link") per step or other event. A link holds the digests of the lines and files
written since the last one, and the digest of the last link. Invariant: the code only reads and locks no run. A record
without a chain never counts as committed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ajet.config.dotenv import load_project_dotenv
from ajet.config.record_file import has_record_file, list_record_folder, open_record_file, read_record_part
from ajet.record.chain import FILE, METRICS, chain_key, digest_of
from ajet.record.checkpoint import verify_checkpoint
from ajet.record.checkpoints import Checkpoints, checkpoints_of
from ajet.record.episode_codec import require_schema
from ajet.record.episodes import NAME
from ajet.record.files import next_line, parse_object
from ajet.record.find_run import require_run
from ajet.record.resume import FILE as IDENTITY
from ajet.schema.errors import UserError
from ajet_proof.auditing.altered import find_waiting_changes, list_altered_episodes
from ajet_proof.auditing.chain_index import ChainIndex, EpisodeLineLocation
from ajet_proof.auditing.chain_state import ChainState, Change, DiskSizes, find_changes, parse_episode_step, read_chain
from ajet_proof.recorded.target import SHORTEST

LOOKS = 3
"""Maximum number of audits of a live run: while it adds links, it also removes old checkpoints and episodes."""
_STEP = re.compile(rb'\{"step": (\d+), ')


@dataclass(slots=True)
class RunAudit:
    """The result of comparing a complete run with its chain."""

    run: Path
    state: ChainState | None
    """The state described by the chain, or None if the run has no chain."""
    changes: list[Change] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    """Episodes that changed in the store and were never trained on."""
    checkpoints: list[int] = field(default_factory=list)
    """Steps of the present checkpoints."""

    @property
    def ok(self) -> bool:
        """True if no file differs from the chain."""
        return not self.changes


@dataclass(slots=True)
class Trail:
    """The episodes and steps connected with a step, an episode or a task."""

    run: Path
    step: int | None  # the requested step
    episodes: list[dict[str, Any]]
    """`collect_episode_facts` of each line, plus `file`, `line`, `link`, `as_committed` and the process that ran it.

    `as_committed` is True if the line equals its digest in the chain, and None if this cannot be known.
    """
    steps: list[dict[str, Any]]
    """Each training step of the episodes: metrics row, `as_committed`, and the checkpoints with its update."""

    @property
    def ok(self) -> bool:
        """True if no listed episode or step is known to be changed."""
        return all(episode["as_committed"] is not False for episode in (*self.episodes, *self.steps))


def find_run_folder(run: str, root: Path) -> Path:
    """Return the folder of a recorded run. Raises UserError if there is none.

    Args:
        run: name or folder of the run.
        root: folder of all runs.
    """
    return require_run(run, root, holding="status.json", expected="the folder of a run").absolute()


def audit_run(folder: Path, *, weights: bool = True, head: str = "") -> RunAudit:
    """Compare all files of a run with its chain.

    Args:
        folder: The run's folder.
        weights: True to read the checkpoints' weights, too.
        head: First digits of the digest of a link that must be in the chain, or "" to require none.
    """
    load_project_dotenv(record=folder)
    # A live run adds links and removes files during an audit: repeat the audit if the chain grew meanwhile.
    for _ in range(LOOKS):
        size = _measure_chain(folder)
        audit = _audit_once(folder, weights, head)
        if audit.ok or _measure_chain(folder) == size:
            break
    return audit


def _measure_chain(folder: Path) -> int:
    """Return the size of a run's chain file in bytes, or 0 if the run has no chain."""
    path = folder / FILE
    return path.stat().st_size if has_record_file(path) else 0


def _audit_once(folder: Path, weights: bool, head: str) -> RunAudit:
    """Compare a run's files with its chain once.

    File sizes are measured before the chain is read, so what a live run appends meanwhile is not reported as a change.

    Args:
        weights: True to read the checkpoints' weights, too.
        head: First digits of the digest of a link that must be in the chain, or "" to require none.
    """
    checkpoints = checkpoints_of(folder)
    sizes = DiskSizes.of(folder, checkpoints.folder)
    state = read_chain(folder, chain_key())
    saved_checkpoints = checkpoints.all()
    audit = RunAudit(folder, state, checkpoints=[checkpoint.step for checkpoint in saved_checkpoints])
    audit.altered += list_altered_episodes(folder)
    audit.changes += find_waiting_changes(folder)
    # (name of the source, digest of a link): every source saw the link, so a chain without it lost entries.
    required_heads = [
        (f"checkpoints/step-{checkpoint.step}", checkpoint.chain)
        for checkpoint in saved_checkpoints
        if checkpoint.chain
    ]
    required_heads += [("--head", head)] if head else []
    if state is not None:
        audit.changes += find_changes(folder, checkpoints.folder, state, weights=weights, sizes=sizes)
    else:
        audit.changes += _find_changes_without_chain(folder, checkpoints, sizes, weights=weights)
    for name, digest in required_heads:
        if state is None:
            audit.changes.append(
                Change(FILE, f"the file is missing, but {name} contains the digest of one of its entries")
            )
        elif not any(link_digest.startswith(digest) for link_digest in state.heads):
            audit.changes.append(Change(FILE, f"entries are missing: {name} refers to entry {digest[:12]}"))
    return audit


def _find_changes_without_chain(
    folder: Path, checkpoints: Checkpoints, sizes: DiskSizes, *, weights: bool
) -> Iterator[Change]:
    """Yield a change for what a run without a chain lacks: the chain of a training run, and files of checkpoints."""
    if (sizes.files or sizes.checkpoints) and os.path.lexists(folder / IDENTITY):
        yield Change(FILE, f"the file is missing, although {IDENTITY} belongs to a training run")
    for name in sorted(sizes.checkpoints):
        verified = verify_checkpoint(checkpoints.folder / name, tensors=weights)
        if damage := verified if isinstance(verified, str) else verified.find_extra_files():
            yield Change(f"checkpoints/{name}", damage)


def trace_step(folder: Path, step: int) -> Trail:
    """Find the episodes that the update of a training step used. Raises UserError if the step is not recorded."""
    with ChainIndex(folder) as index:
        _, lines = index.find_step(step)
        episode_rows = list(_check_linked_episodes(folder, index, lines)) or list(
            _find_unlinked_episodes(folder, only=step)
        )
        if not episode_rows:
            raise UserError(f"The run recorded no training step {step}.", where=str(folder / "episodes"))
        return _build_trail(folder, index, step, episode_rows)


def trace_episode(folder: Path, uuid: str) -> Trail:
    """Find the steps that trained an episode, and the checkpoints with their updates.

    Args:
        uuid: the first letters of the episode's uuid.

    Raises:
        UserError: no episode or several ones match.
    """
    if len(uuid) < SHORTEST:
        raise UserError(
            f"{uuid} is too short for an episode id.", where="--episode", expected=f"at least {SHORTEST} letters"
        )
    with ChainIndex(folder) as index:
        episode_rows = list(_check_linked_episodes(folder, index, index.find_episode(uuid))) or list(
            _find_unlinked_episodes(folder, f'"uuid": "{uuid}')
        )
        if len(names := sorted({location["uuid"] for location in episode_rows})) > 1:
            raise UserError(
                f"The ids of {len(names)} episodes begin with {uuid}.", where=str(folder), do=", ".join(names[:4])
            )
        if not episode_rows:
            raise UserError(
                f"The run has no episode {uuid}.",
                where=str(folder / "episodes"),
                expected="the id of a recorded episode",
            )
        return _build_trail(folder, index, None, episode_rows)


def trace_task(folder: Path, task_id: str) -> Trail:
    """Find all episodes of a task, and the steps that trained them. Raises UserError if none is recorded."""
    with ChainIndex(folder) as index:
        needle = f'"task_id": {json.dumps(task_id, ensure_ascii=False)}'
        episode_rows = list(_check_linked_episodes(folder, index, index.find_task(task_id))) or list(
            _find_unlinked_episodes(folder, needle)
        )
        if not episode_rows:
            raise UserError(f"The run recorded no episode of task {task_id}.", where=str(folder / "episodes"))
        return _build_trail(folder, index, None, episode_rows)


def read_episode_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one row for each recorded episode, ordered by step, with its updates and checkpoints."""
    with ChainIndex(folder) as index:
        saved = _SavedCheckpoints(index, checkpoints_of(folder))
        for location in _scan_episode_files(folder):
            yield location | saved.find_checkpoints_with(location["trained_in"])


def _check_linked_episodes(
    folder: Path, index: ChainIndex, locations: Sequence[EpisodeLineLocation]
) -> Iterator[dict[str, Any]]:
    """Read the lines of episodes that the chain lists, and compare each with its digest in the chain.

    Args:
        locations: locations of the lines, from the chain.

    Yields:
        The facts of each line. Only uuid and location are known if the line was changed (`as_committed` False), or if
        its file was removed (`gone` True).
    """
    start_by_link: dict[int, dict[str, Any]] = {}
    for location in locations:
        source = {"file": location.file, "line": location.number, "link": location.link}
        if location.start not in start_by_link:
            start_by_link[location.start] = index.read_start(location.start)
        start = start_by_link[location.start]
        source["played_by"] = {name: start.get(name) for name in ("process", "backbone", "engine", "versions")}
        line, arrays = _read_line_and_arrays(folder, location)
        if line is None:
            yield {"uuid": location.line.uuid, "task": location.line.task, **source, "as_committed": None, "gone": True}
            continue
        same = digest_of(line) == location.line.digest
        as_committed = same and (arrays is None or digest_of(arrays) == location.line.blob_digest)
        row = (
            _parse_episode_facts(line, f"{folder / location.file}:{location.number}")
            if same
            else {"uuid": location.line.uuid}
        )
        yield {**row, **source, "as_committed": as_committed, "gone": False}


def _read_line_and_arrays(folder: Path, location: EpisodeLineLocation) -> tuple[bytes | None, bytes | None]:
    """Read the JSON line and the arrays of an episode. Each is None if its file was removed."""
    path = folder / location.file
    parts: list[bytes | None] = []
    for file, offset, length in (
        (path, location.at, location.line.length),
        (path.with_suffix(".bin"), location.blob_at, location.line.blob_length),
    ):
        if not has_record_file(file):
            parts.append(None)
            continue
        with open_record_file(file) as stream:
            parts.append(read_record_part(stream, offset, length))
    return parts[0], parts[1]


def _scan_episode_files(folder: Path, mark: str = "", only: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the facts of recorded episodes without looking at the chain, ordered by step.

    Args:
        mark: text that an episode's line must contain.
        only: step whose training episodes are read, or None for all files.
    """
    names = list_record_folder(folder / "episodes")
    paths = [folder / "episodes" / name for name in names if NAME.fullmatch(name)]
    if only is not None:
        paths = [path for path in paths if path.name == f"step-{only}.jsonl"]
    for path in sorted(paths, key=lambda path: (parse_episode_step(path.name), path.name)):
        with open_record_file(path) as lines:
            for number in itertools.count(1):
                line = _read_next_line(lines, f"{path}:{number}")
                if not line.endswith(b"\n"):
                    break
                if mark.encode() in line:
                    source = {"file": f"episodes/{path.name}", "line": number, "link": None, "played_by": None}
                    yield {
                        **_parse_episode_facts(line, f"{path}:{number}"),
                        **source,
                        "as_committed": None,
                        "gone": False,
                    }


def _read_next_line(stream: BinaryIO, where: str) -> bytes:
    """Return the next line of a record file. Raises UserError, with `where` as the place, if the line is too long."""
    try:
        return next_line(stream)
    except ValueError as error:
        raise UserError(f"A line of the record is damaged: {error}.", where=where) from error


def _find_unlinked_episodes(folder: Path, mark: str = "", only: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the facts of recorded episodes that the chain does not list.

    `as_committed` is False if the chain should list them, and None if a live or killed process may not have done so
    yet. The arguments are those of `_scan_episode_files`.
    """
    state = read_chain(folder)
    for location in _scan_episode_files(folder, mark, only):
        step = parse_episode_step(location["file"])
        if state is None or state.unlinked.admits_file(location["file"], step):
            yield location
        else:
            yield {**location, "as_committed": False}


def _parse_episode_facts(line: bytes, where: str) -> dict[str, Any]:
    """Return the facts of an episode's JSON line. Raises UserError, with `where` as the place, for a malformed line."""
    try:
        return collect_episode_facts(parse_object(line))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"A line of the record is damaged: {error}.", where=where) from error


class _SavedCheckpoints:
    """Finds the checkpoints of a run that contain the update of a step."""

    def __init__(self, index: ChainIndex, checkpoints: Checkpoints) -> None:
        """Collect the steps of present checkpoints, and of all that the chain records, present or not."""
        self._present_steps = [checkpoint.step for checkpoint in checkpoints.all()]
        self._all_steps = sorted({*self._present_steps, *(step for step, _ in index.list_checkpoints())})

    def find_checkpoints_with(self, step: int | None) -> dict[str, Any]:
        """Return the first checkpoint that contains the update of a step, and all present ones that do."""
        if step is None:
            return {"first_checkpoint": None, "checkpoints": []}
        first = next((saved for saved in self._all_steps if saved >= step), None)
        return {"first_checkpoint": first, "checkpoints": [saved for saved in self._present_steps if saved >= step]}


def _build_trail(folder: Path, index: ChainIndex, step: int | None, episodes: list[dict[str, Any]]) -> Trail:
    """Collect the facts on each step that trained some episodes.

    A step's `as_committed` is True if the digest of its metrics row is in the chain, and None if the chain has no link
    of the step.

    Args:
        step: The requested step, listed even if no episode was trained in it. None: an episode or a task is traced.
        episodes: The facts of each episode's line, as in `Trail.episodes`.
    """
    saved = _SavedCheckpoints(index, checkpoints_of(folder))
    trained_steps = {int(episode["trained_in"]) for episode in episodes if episode.get("trained_in") is not None}
    shown_steps = sorted(trained_steps | ({step} if step is not None else set()))
    rows = _read_metric_rows(folder / METRICS, set(shown_steps))
    steps = []
    for shown_step in shown_steps:
        row, digest = rows.get(shown_step, (None, ""))
        link, committed = index.find_step_link(shown_step), index.list_row_digests(shown_step)
        facts = {"link": link, "row": row, "as_committed": digest in committed if link is not None else None}
        steps.append({"step": shown_step, **facts, **saved.find_checkpoints_with(shown_step)})
    return Trail(folder, step, episodes, steps)


def _read_metric_rows(path: Path, steps: set[int]) -> dict[int, tuple[dict[str, Any], str]]:
    """Return the last row of metrics.jsonl for each of the steps, with the row's digest."""
    rows: dict[int, tuple[dict[str, Any], str]] = {}
    if not has_record_file(path):
        return rows
    with open_record_file(path) as lines:
        for number in itertools.count(1):
            line = _read_next_line(lines, f"{path}:{number}")
            if not line.endswith(b"\n"):
                break
            step_match = _STEP.match(line)
            # Rows of validations have no key `tasks`; they do not describe an update.
            if step_match is not None and int(step_match[1]) in steps and b'"tasks": ' in line:
                rows[int(step_match[1])] = parse_object(line), digest_of(line)
    return rows


# Facts of one episode line, without its arrays: worker, task, calls, tool uses, verdict, update.
# Invariant: plain JSON values for a line of any schema; texts of models, tools and judges are cut, with their
# length.
SHOWN = 400
"""Maximum number of characters of a text; longer ones are cut."""


def collect_episode_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of an episode that `ajet audit` prints and exports.

    Args:
        row: the episode's JSON line.

    Raises:
        UserError: the line has another schema.
        KeyError, TypeError, AttributeError, IndexError: the line is malformed.
    """
    require_schema(row)
    outcome, verdict = row.get("outcome") or {}, row.get("verdict") or {}
    calls = [_summarize_call(call, row["messages"]) for call in row["calls"]]
    sampled = sum(call["sampled"] for call in calls)
    untrained = dict(row["untrained"])
    for reason, count in (outcome.get("untrained") or {}).items():
        untrained[reason] = untrained.get(reason, 0) + count
    trained = sampled - sum(untrained.values()) if outcome.get("step") is not None else 0
    return {
        "uuid": row["uuid"],
        "task": row["task"]["task_id"],
        "question": _shorten_text(row["task"]["main_query"]),
        "group": row.get("group", ""),
        "order": row.get("order", -1),
        "repeat": row["repeat"],
        "split": row["split"],
        "played_for": row["step"],
        "run": row.get("run", ""),
        "sampler": row.get("sampler"),
        "policy": row.get("policy"),
        "started": row["started"],
        "ended": row["ended"],
        "attempts": row["attempts"],
        "status": row["status"],
        "ending": row.get("ending", ""),
        "failure": _format_failure(row["failure"]),
        "reward": verdict.get("reward"),
        "success": verdict.get("success"),
        "verdict": _shorten_text(verdict.get("reason", "")),
        "scorer": verdict.get("scorer", ""),
        "scores": verdict.get("parts") or {},
        "calls": calls,
        "tools": [_summarize_tool_use(use) for use in row.get("tool_uses", ())],
        "sampled_tokens": sampled,
        "trained_in": outcome.get("step"),
        "advantage": outcome.get("advantage"),
        "trained_tokens": trained,
        "untrained": untrained,
        "discarded": outcome.get("discarded"),
    }


def _summarize_call(call: Mapping[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a call's facts for an audit: agent, numbers of prompt and sampled tokens, policy versions, reply.

    Args:
        call: the call's JSON row; its ids are stored as positions (start, stop) in the episode's arrays.
        messages: the episode's messages, to which `call["reply"]` is an index.
    """
    start, stop = call["response_ids"]
    fresh_start, fresh_stop = call["suffix_ids"]
    reply = messages[call["reply"]] if call["reply"] is not None else {}
    return {
        "agent": call["agent"],
        "target": call["target"],
        "trained": call["trained"],
        "prompt": call["prefix"] + fresh_stop - fresh_start,
        "sampled": stop - start,
        "versions": [run[1:] for run in call["versions"]],  # (first token, low, high) -> (low, high)
        "finish": call["finish"],
        "error": call["error"],
        "started": call["started"],
        "ended": call["ended"],
        "said": _shorten_text(str(reply.get("content") or reply.get("tool_calls") or "")),
    }


def _summarize_tool_use(use: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call's facts for an audit, with its result cut to SHOWN characters."""
    facts = {name: use.get(name) for name in ("name", "server", "call_id", "digest", "started", "ended")}
    return facts | {
        "arguments": use.get("arguments"),
        "result": _shorten_text(str(use.get("result", ""))),
        "error": use.get("error", ""),
    }


def _format_failure(failure: Mapping[str, Any] | None) -> str | None:
    """Return a failure as "boundary: kind: message", or None without a failure."""
    return f"{failure['boundary']}: {failure['kind']}: {_shorten_text(failure['message'])}" if failure else None


def _shorten_text(text: str) -> str:
    """Cut a text to SHOWN characters and append its full length, if it is longer."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"
