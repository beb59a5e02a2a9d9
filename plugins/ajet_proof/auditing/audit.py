"""`ajet audit`: from an update back to what fed it, from an episode or a task forward to what it fed, and whether all
of it is what was committed.

Invariant: it only reads, and locks no run. Of what was recorded without a chain nothing is said to be as committed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ajet.config.dotenv import load_project_dotenv
from ajet.config.record_file import has_record_file, list_record_folder, open_record_file, read_record_part
from ajet.record.bounded_json import next_line, parse_object
from ajet.record.chain import FILE, METRICS, chain_key, digest_of
from ajet.record.checkpoint import examined
from ajet.record.checkpoints import Checkpoints, checkpoints_of
from ajet.record.episodes import NAME
from ajet.record.find_run import known_run
from ajet.record.resume import FILE as IDENTITY
from ajet.schema.errors import UserError
from ajet_proof.auditing import altered
from ajet_proof.auditing.chain_index import ChainIndex, EpisodeLineLocation
from ajet_proof.auditing.chain_state import ChainState, Change, DiskSizes, find_changes, parse_episode_step, read_chain
from ajet_proof.auditing.episode_facts import collect_episode_facts

SHORTEST = 6
"""Letters of an episode's uuid that are enough to name it."""
LOOKS = 3
"""At what seems changed while links are added: a live run lets old checkpoints and episodes go meanwhile."""
_STEP = re.compile(rb'\{"step": (\d+), ')


@dataclass(slots=True)
class RunAudit:
    """The commitments of a run, and whether all that was committed is there."""

    run: Path
    state: ChainState | None
    """None: the run has no chain."""
    changes: list[Change] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    """Episodes that were changed while they waited in the store, which no step was made of."""
    checkpoints: list[int] = field(default_factory=list)
    """Steps of those that are there."""

    @property
    def ok(self) -> bool:
        """Whether nothing is known to be changed."""
        return not self.changes


@dataclass(slots=True)
class Trail:
    """The records that hang together with a step, an episode or a task."""

    run: Path
    step: int | None
    """The one that was asked for."""
    episodes: list[dict[str, Any]]
    """`episode_facts` of each line, with `file`, `line`, `link`, `as_committed` and who played it."""
    steps: list[dict[str, Any]]
    """Each training step that used one of them: its numbers, whether they are `as_committed`, and the checkpoints that
    contain it."""

    @property
    def ok(self) -> bool:
        """Whether none of it is known to be changed."""
        return all(each["as_committed"] is not False for each in (*self.episodes, *self.steps))


def find_run_folder(run: str, root: Path) -> Path:
    """The folder of a recorded run. Raises UserError."""
    return known_run(run, root, holding="status.json", expected="the directory of a run").absolute()


def audit_run(folder: Path, *, weights: bool = True, head: str = "") -> RunAudit:
    """Hold all that the chain of the run in `folder` has to what is there. `weights`: also the checkpoints' weights;
    `head`: the digest of a link, which the chain must still have."""
    load_project_dotenv(record=folder)
    for _ in range(LOOKS):
        size = _measure_chain(folder)
        found = _audit_once(folder, weights, head)
        if found.ok or _measure_chain(folder) == size:
            break
    return found


def _measure_chain(folder: Path) -> int:
    path = folder / FILE
    return path.stat().st_size if has_record_file(path) else 0


def _audit_once(folder: Path, weights: bool, head: str) -> RunAudit:
    checkpoints = checkpoints_of(folder)
    sizes = DiskSizes.of(folder, checkpoints.folder)
    state = read_chain(folder, chain_key())
    saved = checkpoints.all()
    found = RunAudit(folder, state, checkpoints=[each.step for each in saved])
    found.altered += altered.list_altered_episodes(folder)
    found.changes += altered.find_waiting_changes(folder)
    heads = [(f"checkpoints/step-{each.step}", each.chain) for each in saved if each.chain]
    heads += [("--head", head)] if head else []
    if state is not None:
        found.changes += find_changes(folder, checkpoints.folder, state, weights=weights, sizes=sizes)
    else:
        found.changes += _find_changes_without_chain(folder, checkpoints, sizes, weights=weights)
    for name, digest in heads:
        if state is None:
            found.changes.append(Change(FILE, f"it is missing: {name} holds the digest of one of its links"))
        elif not any(each.startswith(digest) for each in state.heads):
            found.changes.append(Change(FILE, f"links are missing: {name} says that there was one of {digest[:12]}"))
    return found


def _find_changes_without_chain(
    folder: Path, checkpoints: Checkpoints, sizes: DiskSizes, *, weights: bool
) -> Iterator[Change]:
    """What a run without a chain claims to have, and has not: the chain itself, and what its checkpoints name."""
    if (sizes.files or sizes.checkpoints) and os.path.lexists(folder / IDENTITY):
        yield Change(FILE, f"it is missing, and {IDENTITY} says that this is a training run")
    for name in sorted(sizes.checkpoints):
        found = examined(checkpoints.folder / name, tensors=weights)
        if damage := found if isinstance(found, str) else found.find_extra_files():
            yield Change(f"checkpoints/{name}", damage)


def trace_step(folder: Path, step: int) -> Trail:
    """Back from an update. Raises UserError where no such step is recorded."""
    with ChainIndex(folder) as index:
        _, found = index.find_step(step)
        places = list(_check_linked_episodes(folder, index, found)) or list(_find_unlinked_episodes(folder, only=step))
        if not places:
            raise UserError(f"No training step {step} is recorded.", where=str(folder / "episodes"))
        return _build_trail(folder, index, step, places)


def trace_episode(folder: Path, uuid: str) -> Trail:
    """Forward from the episode whose uuid begins so. Raises UserError where there is none, or several are."""
    if len(uuid) < SHORTEST:
        raise UserError(f"{uuid} is short for a uuid.", where="--episode", expected=f"{SHORTEST} letters at least")
    with ChainIndex(folder) as index:
        places = list(_check_linked_episodes(folder, index, index.find_episode(uuid))) or list(
            _find_unlinked_episodes(folder, f'"uuid": "{uuid}')
        )
        if len(names := sorted({place["uuid"] for place in places})) > 1:
            raise UserError(f"{len(names)} episodes begin with {uuid}.", where=str(folder), do=", ".join(names[:4]))
        if not places:
            raise UserError(f"There is no episode {uuid}.", where=str(folder / "episodes"), expected="the uuid of one")
        return _build_trail(folder, index, None, places)


def trace_task(folder: Path, task_id: str) -> Trail:
    """Forward from all attempts at a task. Raises UserError where there is none."""
    with ChainIndex(folder) as index:
        mark = f'"task_id": {json.dumps(task_id, ensure_ascii=False)}'
        places = list(_check_linked_episodes(folder, index, index.find_task(task_id))) or list(
            _find_unlinked_episodes(folder, mark)
        )
        if not places:
            raise UserError(f"No episode of a task {task_id} is recorded.", where=str(folder / "episodes"))
        return _build_trail(folder, index, None, places)


def read_episode_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """One row for each recorded episode, step by step, with what it fed."""
    with ChainIndex(folder) as index:
        saved = _SavedCheckpoints(index, checkpoints_of(folder))
        for place in _scan_episode_files(folder):
            yield place | saved.find_checkpoints_with(place["trained_in"])


def _check_linked_episodes(
    folder: Path, index: ChainIndex, found: Sequence[EpisodeLineLocation]
) -> Iterator[dict[str, Any]]:
    """The episodes of lines that the chain knows, held to it."""
    starts: dict[int, dict[str, Any]] = {}
    for each in found:
        about = {"file": each.file, "line": each.number, "link": each.link}
        if each.start not in starts:
            starts[each.start] = index.read_start(each.start)
        began = starts[each.start]
        about["played_by"] = {name: began.get(name) for name in ("process", "backbone", "engine", "versions")}
        line, arrays = _read_line_and_arrays(folder, each)
        if line is None:
            yield {"uuid": each.line.uuid, "task": each.line.task, **about, "as_committed": None, "gone": True}
            continue
        same = digest_of(line) == each.line.digest
        as_committed = same and (arrays is None or digest_of(arrays) == each.line.blob_digest)
        row = _parse_episode_facts(line, f"{folder / each.file}:{each.number}") if same else {"uuid": each.line.uuid}
        yield {**row, **about, "as_committed": as_committed, "gone": False}


def _read_line_and_arrays(folder: Path, found: EpisodeLineLocation) -> tuple[bytes | None, bytes | None]:
    """A line, and its arrays; None for what is gone."""
    path = folder / found.file
    parts: list[bytes | None] = []
    for file, at, length in (
        (path, found.at, found.line.length),
        (path.with_suffix(".bin"), found.blob_at, found.line.blob_length),
    ):
        if not has_record_file(file):
            parts.append(None)
            continue
        with open_record_file(file) as stream:
            parts.append(read_record_part(stream, at, length))
    return parts[0], parts[1]


def _scan_episode_files(folder: Path, mark: str = "", only: int | None = None) -> Iterator[dict[str, Any]]:
    """The episodes of all lines that hold `mark`, or of a step's file, as they are there."""
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
                    about = {"file": f"episodes/{path.name}", "line": number, "link": None, "played_by": None}
                    yield {
                        **_parse_episode_facts(line, f"{path}:{number}"),
                        **about,
                        "as_committed": None,
                        "gone": False,
                    }


def _read_next_line(stream: BinaryIO, where: str) -> bytes:
    try:
        return next_line(stream)
    except ValueError as error:
        raise UserError(f"A line of the record is damaged: {error}.", where=where) from error


def _find_unlinked_episodes(folder: Path, mark: str = "", only: int | None = None) -> Iterator[dict[str, Any]]:
    """The same, of episodes that no link knows: not as committed where the run's chain would have to know them."""
    state = read_chain(folder)
    for place in _scan_episode_files(folder, mark, only):
        step = parse_episode_step(place["file"])
        if state is None or state.unlinked.admits_file(place["file"], step):
            yield place
        else:
            yield {**place, "as_committed": False}


def _parse_episode_facts(line: bytes, where: str) -> dict[str, Any]:
    try:
        return collect_episode_facts(parse_object(line))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"A line of the record is damaged: {error}.", where=where) from error


class _SavedCheckpoints:
    """Which checkpoints contain a step."""

    def __init__(self, index: ChainIndex, checkpoints: Checkpoints) -> None:
        self._present_steps = [each.step for each in checkpoints.all()]
        self._all_steps = sorted({*self._present_steps, *(step for step, _ in index.list_checkpoints())})

    def find_checkpoints_with(self, step: int | None) -> dict[str, Any]:
        """The first that was saved with it, and those that are there."""
        if step is None:
            return {"first_checkpoint": None, "checkpoints": []}
        first = next((saved for saved in self._all_steps if saved >= step), None)
        return {"first_checkpoint": first, "checkpoints": [saved for saved in self._present_steps if saved >= step]}


def _build_trail(folder: Path, index: ChainIndex, step: int | None, places: list[dict[str, Any]]) -> Trail:
    saved = _SavedCheckpoints(index, checkpoints_of(folder))
    used = {int(place["trained_in"]) for place in places if place.get("trained_in") is not None}
    wanted = sorted(used | ({step} if step is not None else set()))
    rows = _read_metric_rows(folder / METRICS, set(wanted))
    steps = []
    for each in wanted:
        row, digest = rows.get(each, (None, ""))
        link, linked = index.find_step_link(each), index.list_row_digests(each)
        about = {"link": link, "row": row, "as_committed": digest in linked if link is not None else None}
        steps.append({"step": each, **about, **saved.find_checkpoints_with(each)})
    return Trail(folder, step, places, steps)


def _read_metric_rows(path: Path, steps: set[int]) -> dict[int, tuple[dict[str, Any], str]]:
    """The last row of each training step, and its digest."""
    found: dict[int, tuple[dict[str, Any], str]] = {}
    if not has_record_file(path):
        return found
    with open_record_file(path) as lines:
        for number in itertools.count(1):
            line = _read_next_line(lines, f"{path}:{number}")
            if not line.endswith(b"\n"):
                break
            head = _STEP.match(line)
            if head is not None and int(head[1]) in steps and b'"tasks": ' in line:
                found[int(head[1])] = parse_object(line), digest_of(line)
    return found
