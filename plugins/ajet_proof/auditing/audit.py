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
from ajet.record.checkpoint import verify_checkpoint
from ajet.record.checkpoints import Checkpoints, checkpoints_of
from ajet.record.episodes import NAME
from ajet.record.find_run import require_run
from ajet.record.resume import FILE as IDENTITY
from ajet.schema.errors import UserError
from ajet_proof.auditing import altered
from ajet_proof.auditing.chain_index import ChainIndex, Found
from ajet_proof.auditing.chain_state import ChainState, Change, DiskSizes, changes_of, read_chain, step_of
from ajet_proof.auditing.episode_facts import episode_facts

SHORTEST = 6
"""Letters of an episode's uuid that are enough to name it."""
LOOKS = 3
"""At what seems changed while links are added: a live run lets old checkpoints and episodes go meanwhile."""
_STEP = re.compile(rb'\{"step": (\d+), ')


@dataclass(slots=True)
class Whole:
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


def run_of(run: str, root: Path) -> Path:
    """The folder of a recorded run. Raises UserError."""
    return require_run(run, root, holding="status.json", expected="the directory of a run").absolute()


def audit_whole(folder: Path, *, weights: bool = True, head: str = "") -> Whole:
    """Hold all that the chain of the run in `folder` has to what is there. `weights`: also the checkpoints' weights;
    `head`: the digest of a link, which the chain must still have."""
    load_project_dotenv(record=folder)
    for _ in range(LOOKS):
        size = _chain_size(folder)
        found = _looked(folder, weights, head)
        if found.ok or _chain_size(folder) == size:
            break
    return found


def _chain_size(folder: Path) -> int:
    path = folder / FILE
    return path.stat().st_size if has_record_file(path) else 0


def _looked(folder: Path, weights: bool, head: str) -> Whole:
    checkpoints = checkpoints_of(folder)
    sizes = DiskSizes.of(folder, checkpoints.folder)
    state = read_chain(folder, chain_key())
    saved = checkpoints.all()
    found = Whole(folder, state, checkpoints=[each.step for each in saved])
    found.altered += altered.told_of(folder)
    found.changes += altered.waiting(folder)
    heads = [(f"checkpoints/step-{each.step}", each.chain) for each in saved if each.chain]
    heads += [("--head", head)] if head else []
    if state is not None:
        found.changes += changes_of(folder, checkpoints.folder, state, weights=weights, sizes=sizes)
    else:
        found.changes += _changes_without_chain(folder, checkpoints, sizes, weights=weights)
    for name, digest in heads:
        if state is None:
            found.changes.append(Change(FILE, f"it is missing: {name} holds the digest of one of its links"))
        elif not any(each.startswith(digest) for each in state.heads):
            found.changes.append(Change(FILE, f"links are missing: {name} says that there was one of {digest[:12]}"))
    return found


def _changes_without_chain(
    folder: Path, checkpoints: Checkpoints, sizes: DiskSizes, *, weights: bool
) -> Iterator[Change]:
    """What a run without a chain claims to have, and has not: the chain itself, and what its checkpoints name."""
    if (sizes.files or sizes.checkpoints) and os.path.lexists(folder / IDENTITY):
        yield Change(FILE, f"it is missing, and {IDENTITY} says that this is a training run")
    for name in sorted(sizes.checkpoints):
        found = verify_checkpoint(checkpoints.folder / name, tensors=weights)
        if damage := found if isinstance(found, str) else found.find_extra_files():
            yield Change(f"checkpoints/{name}", damage)


def trail_of_step(folder: Path, step: int) -> Trail:
    """Back from an update. Raises UserError where no such step is recorded."""
    with ChainIndex(folder) as index:
        _, found = index.step(step)
        places = list(_placed(folder, index, found)) or list(_unlinked(folder, only=step))
        if not places:
            raise UserError(f"No training step {step} is recorded.", where=str(folder / "episodes"))
        return _trail(folder, index, step, places)


def trail_of_episode(folder: Path, uuid: str) -> Trail:
    """Forward from the episode whose uuid begins so. Raises UserError where there is none, or several are."""
    if len(uuid) < SHORTEST:
        raise UserError(f"{uuid} is short for a uuid.", where="--episode", expected=f"{SHORTEST} letters at least")
    with ChainIndex(folder) as index:
        places = list(_placed(folder, index, index.episode(uuid))) or list(_unlinked(folder, f'"uuid": "{uuid}'))
        if len(names := sorted({place["uuid"] for place in places})) > 1:
            raise UserError(f"{len(names)} episodes begin with {uuid}.", where=str(folder), do=", ".join(names[:4]))
        if not places:
            raise UserError(f"There is no episode {uuid}.", where=str(folder / "episodes"), expected="the uuid of one")
        return _trail(folder, index, None, places)


def trail_of_task(folder: Path, task_id: str) -> Trail:
    """Forward from all attempts at a task. Raises UserError where there is none."""
    with ChainIndex(folder) as index:
        mark = f'"task_id": {json.dumps(task_id, ensure_ascii=False)}'
        places = list(_placed(folder, index, index.task(task_id))) or list(_unlinked(folder, mark))
        if not places:
            raise UserError(f"No episode of a task {task_id} is recorded.", where=str(folder / "episodes"))
        return _trail(folder, index, None, places)


def episode_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """One row for each recorded episode, step by step, with what it fed."""
    with ChainIndex(folder) as index:
        saved = _Saved(index, checkpoints_of(folder))
        for place in _scanned(folder):
            yield place | saved.containing(place["trained_in"])


def _placed(folder: Path, index: ChainIndex, found: Sequence[Found]) -> Iterator[dict[str, Any]]:
    """The episodes of lines that the chain knows, held to it."""
    starts: dict[int, dict[str, Any]] = {}
    for each in found:
        about = {"file": each.file, "line": each.number, "link": each.link}
        if each.start not in starts:
            starts[each.start] = index.start(each.start)
        began = starts[each.start]
        about["played_by"] = {name: began.get(name) for name in ("process", "backbone", "engine", "versions")}
        line, arrays = _bytes_of(folder, each)
        if line is None:
            yield {"uuid": each.line.uuid, "task": each.line.task, **about, "as_committed": None, "gone": True}
            continue
        same = digest_of(line) == each.line.digest
        whole = same and (arrays is None or digest_of(arrays) == each.line.blob_digest)
        row = _facts(line, f"{folder / each.file}:{each.number}") if same else {"uuid": each.line.uuid}
        yield {**row, **about, "as_committed": whole, "gone": False}


def _bytes_of(folder: Path, found: Found) -> tuple[bytes | None, bytes | None]:
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


def _scanned(folder: Path, mark: str = "", only: int | None = None) -> Iterator[dict[str, Any]]:
    """The episodes of all lines that hold `mark`, or of a step's file, as they are there."""
    names = list_record_folder(folder / "episodes")
    paths = [folder / "episodes" / name for name in names if NAME.fullmatch(name)]
    if only is not None:
        paths = [path for path in paths if path.name == f"step-{only}.jsonl"]
    for path in sorted(paths, key=lambda path: (step_of(path.name), path.name)):
        with open_record_file(path) as lines:
            for number in itertools.count(1):
                line = _next_line(lines, f"{path}:{number}")
                if not line.endswith(b"\n"):
                    break
                if mark.encode() in line:
                    about = {"file": f"episodes/{path.name}", "line": number, "link": None, "played_by": None}
                    yield {**_facts(line, f"{path}:{number}"), **about, "as_committed": None, "gone": False}


def _next_line(stream: BinaryIO, where: str) -> bytes:
    try:
        return next_line(stream)
    except ValueError as error:
        raise UserError(f"A line of the record is damaged: {error}.", where=where) from error


def _unlinked(folder: Path, mark: str = "", only: int | None = None) -> Iterator[dict[str, Any]]:
    """The same, of episodes that no link knows: not as committed where the run's chain would have to know them."""
    state = read_chain(folder)
    for place in _scanned(folder, mark, only):
        step = step_of(place["file"])
        if state is None or state.unlinked.admits_file(place["file"], step):
            yield place
        else:
            yield {**place, "as_committed": False}


def _facts(line: bytes, where: str) -> dict[str, Any]:
    try:
        return episode_facts(parse_object(line))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"A line of the record is damaged: {error}.", where=where) from error


class _Saved:
    """Which checkpoints contain a step."""

    def __init__(self, index: ChainIndex, checkpoints: Checkpoints) -> None:
        self._there = [each.step for each in checkpoints.all()]
        self._ever = sorted({*self._there, *(step for step, _ in index.checkpoints())})

    def containing(self, step: int | None) -> dict[str, Any]:
        """The first that was saved with it, and those that are there."""
        if step is None:
            return {"first_checkpoint": None, "checkpoints": []}
        first = next((saved for saved in self._ever if saved >= step), None)
        return {"first_checkpoint": first, "checkpoints": [saved for saved in self._there if saved >= step]}


def _trail(folder: Path, index: ChainIndex, step: int | None, places: list[dict[str, Any]]) -> Trail:
    saved = _Saved(index, checkpoints_of(folder))
    used = {int(place["trained_in"]) for place in places if place.get("trained_in") is not None}
    wanted = sorted(used | ({step} if step is not None else set()))
    rows = _metric_rows(folder / METRICS, set(wanted))
    steps = []
    for each in wanted:
        row, digest = rows.get(each, (None, ""))
        link, linked = index.link_of(each), index.rows_of(each)
        about = {"link": link, "row": row, "as_committed": digest in linked if link is not None else None}
        steps.append({"step": each, **about, **saved.containing(each)})
    return Trail(folder, step, places, steps)


def _metric_rows(path: Path, steps: set[int]) -> dict[int, tuple[dict[str, Any], str]]:
    """The last row of each training step, and its digest."""
    found: dict[int, tuple[dict[str, Any], str]] = {}
    if not has_record_file(path):
        return found
    with open_record_file(path) as lines:
        for number in itertools.count(1):
            line = _next_line(lines, f"{path}:{number}")
            if not line.endswith(b"\n"):
                break
            head = _STEP.match(line)
            if head is not None and int(head[1]) in steps and b'"tasks": ' in line:
                found[int(head[1])] = parse_object(line), digest_of(line)
    return found
