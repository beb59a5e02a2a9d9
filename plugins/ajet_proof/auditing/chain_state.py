"""Compares the files of a run with its chain, a file of linked digests.

Invariant: the code only reads. The entries of the chain ("links") are trusted as far as they fit together: each
contains the digest of the previous link and, if a key is set, is signed with the key. Every difference names its file,
and the line or byte.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet.config.record_file import (
    RecordFileError,
    has_record_file,
    list_record_folder,
    measure_record_file,
    open_record_file,
    read_record_part,
)
from ajet.record.chain import (
    FILE,
    GENESIS,
    KEY,
    METRICS,
    LinkedLine,
    LinkedLines,
    digest_of,
    key_name,
    link_digest,
    links_of,
    split_link,
)
from ajet.record.checkpoint import STATE, Checkpoint, inspect_checkpoint
from ajet.record.checkpoint import step_of as step_of_checkpoint
from ajet.record.episodes import NAME
from ajet.record.files import next_line, parse_object
from ajet_proof.auditing.unlinked import UnlinkedWindow


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between a file of a run and the chain."""

    file: str
    """Path below the run's folder."""
    what: str
    line: int | None = None
    """Line number, from 1; None if no line is concerned."""

    def __str__(self) -> str:
        return f"{self.file}{f':{self.line}' if self.line else ''}: {self.what}"


@dataclass(slots=True)
class ChainState:
    """What a run's files must contain, accumulated from the chain's links in order."""

    links: int = 0
    """Number of the last link of the chain of digests."""
    head: str = GENESIS
    """Digest of the last link."""
    heads: set[str] = field(default_factory=set)  # digests of all links
    key: str = ""
    """Name of the key that signed the last link; "" without a key."""
    unkeyed: int = 0
    """Number of links without a key."""
    is_key_verified: bool = True
    """True if the digests of the links could be verified with their key."""
    run: str = ""
    starts: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)
    """Training step -> number of the link that committed it."""
    files: dict[str, list[LinkedLines]] = field(default_factory=dict)
    rows: list[tuple[int, str]] = field(default_factory=list)
    """(step, digest) of each row of metrics.jsonl."""
    saved: dict[int, str] = field(default_factory=dict)
    """Step -> digest of its last saved checkpoint."""
    required: dict[int, str] = field(default_factory=dict)
    """Step -> digest of a checkpoint that must be present."""
    replacements: dict[int, str] = field(default_factory=dict)
    """Step -> digest of a checkpoint that was replacing a required one; either may be present."""
    removed: dict[str, str] = field(default_factory=dict)
    """File that `ajet gc` removed -> reason of the removal."""
    adopted: Counter[str] = field(default_factory=Counter)
    """File -> number of lines written by a killed process and linked by the next one."""
    changes: list[Change] = field(default_factory=list)  # problems of the links
    unlinked: UnlinkedWindow = field(default_factory=UnlinkedWindow)
    """Steps whose files and rows may be missing in the chain, because their process may have been killed."""

    def apply_link(self, link: Mapping[str, Any]) -> None:
        """Update the state by the next link. Raises KeyError, TypeError or ValueError if the link is malformed."""
        kind, step = str(link["kind"]), int(link["step"])
        if kind == "start":
            self._apply_start(link)
        elif kind == "resume":
            self.unlinked.reopen(step, self._list_recorded_after(step))
            self._forget_steps_after(step)
            self._count_adopted_lines(link)
        elif kind == "gc":
            self._apply_removal(link)
        elif kind == "end":
            self.unlinked.close(str(link["outcome"]))
        else:
            self.unlinked.advance(step)
        if kind == "checkpoint":
            self.saved[step] = str(link["checkpoint"])
            self.required = {int(number): str(digest) for number, digest in link["kept"].items()}
            self.replacements.clear()
        elif kind == "saving":
            self.replacements[step] = str(link["checkpoint"])
        elif kind == "step":
            self.steps[step] = int(link["link"])
        for block in link.get("episodes", ()):
            self.files.setdefault(block["file"], []).append(LinkedLines.of(block))
        self.rows += [(step, str(digest)) for digest in link.get("rows", ())]

    def iterate_lines(self, file: str) -> Iterator[tuple[LinkedLine, int, int]]:
        """Yield each line that an episode file must contain, in order.

        Yields:
            (line with its digests, byte offset of the line, byte offset of its arrays in the `.bin` file).
        """
        for line_block in self.files.get(file, ()):
            yield from line_block.places()

    def _apply_start(self, link: Mapping[str, Any]) -> None:
        """Apply the link that a process writes at its start.

        `from` is the checkpoint from which the process continues. `own` is True if it lies in this run's folder, where
        it must
        still be present.
        """
        self.starts.append(dict(link))
        self.run = str(link["run"])
        if (base := link.get("from")) is not None:
            self.saved.setdefault(int(base["step"]), str(base["digest"]))
            self.unlinked.begin_after(int(base["step"]))
            if base["own"]:
                self._require_checkpoint(int(base["step"]), str(base["digest"]))

    def _require_checkpoint(self, step: int, digest: str) -> None:
        """Require the checkpoint from which a process resumed.

        If a killed process was saving the step's checkpoint again, this tells whether the old or new one is there.
        """
        if self.replacements.pop(step, None) == digest:
            self.required[step] = self.saved[step] = digest
        self.required.setdefault(step, digest)

    def _list_recorded_after(self, step: int) -> set[str]:
        """Return the episode files and row digests recorded after `step`."""
        return {file for file in self.files if parse_episode_step(file) > step} | {
            row for row_step, row in self.rows if row_step > step
        }

    def _forget_steps_after(self, after: int) -> None:
        """Remove all files, rows, steps and checkpoints after a step from the state, as a resume at this step removes
        them."""
        self.files = {file: lines for file, lines in self.files.items() if parse_episode_step(file) <= after}
        self.rows = [row for row in self.rows if row[0] <= after]
        self.steps = {step: link for step, link in self.steps.items() if step <= after}
        for checkpoints in (self.saved, self.required, self.replacements):
            for step in [step for step in checkpoints if step > after]:
                del checkpoints[step]

    def _count_adopted_lines(self, link: Mapping[str, Any]) -> None:
        """Count the lines and rows that a killed process wrote without a link, and that this resume link lists."""
        for block in link.get("episodes", ()):
            self.adopted[block["file"]] += len(block["lines"])
        self.adopted[METRICS] += len(link.get("rows", ()))

    def _apply_removal(self, link: Mapping[str, Any]) -> None:
        """Apply a link of `ajet gc`: the files and checkpoints that it removed need not be present."""
        for file in link["removed"]:
            self.removed[file] = str(link["why"])
        for step in link["checkpoints"]:
            self.required.pop(int(step), None)


def parse_episode_step(file: str) -> int:
    """Return the step in the name of an episode file, or -1 for any other file."""
    match = NAME.fullmatch(Path(file).name)
    return int(match[1]) if match else -1


def read_chain(folder: Path, key: bytes | None = None) -> ChainState | None:
    """Read a run's chain, verify how its links fit together, and return the state that they describe.

    Args:
        folder: The run's folder.
        key: The key that signs the links, or None. The digests of signed links are verified only with their key.

    Returns:
        The state, with the problems of the links in `changes`, or None if the run has no chain.
    """
    path = folder / FILE
    try:
        opened = open_record_file(path)
    except FileNotFoundError:
        return None
    state, own_key = ChainState(), key_name(key) if key else ""
    with opened as file:
        for number, line in enumerate(links_of(file), 1):
            try:
                body, digest = split_link(line)
                link = parse_object(body)
                problem = _find_link_problem(state, link, body, digest, key, own_key)
                state.apply_link(link)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
                problem = f"this entry is damaged ({type(error).__name__})"
                digest, link = "", {}
            if problem:
                state.changes.append(Change(FILE, problem, number))
            state.links, state.head = int(link.get("link", state.links + 1)), digest
            state.key = str(link.get("key", "")) if link else state.key
            state.unkeyed += not state.key
            state.heads.add(digest)
    if key and state.key != own_key:  # a process without the key could have rewritten the complete chain
        signature = f"with the key {state.key}" if state.key else "without a key"
        state.changes.append(Change(FILE, f"the chain was signed {signature}, but {KEY} is the key {own_key}"))
    return state


def _find_link_problem(
    state: ChainState, link: Mapping[str, Any], body: bytes, digest: str, key: bytes | None, user_key_name: str
) -> str:
    """Return why a link cannot follow the previous one, or "" if it can.

    Args:
        state: the state after the previous link.
        body: the link's bytes without its digest.
        digest: the digest written with the link.
        key: the key set by the user, or None.
        user_key_name: the name of this key, or "".
    """
    link_key = str(link.get("key", ""))
    if state.key and link_key != state.key:
        return "this entry was written without the key of the earlier entries"
    if link_key and link_key != user_key_name:
        state.is_key_verified = False
    elif link_digest(body, key if link_key else None) != digest:
        return "this entry was changed"
    if link["link"] != state.links + 1:
        return f"this is entry {link['link']} after entry {state.links}: entries are missing or reordered"
    if state.head and link["earlier"] != state.head:
        return "the previous entry was changed or replaced"
    return ""


@dataclass(frozen=True, slots=True)
class DiskSizes:
    """File sizes of a run, measured before its chain is read.

    What a live run appends afterwards then does not count as a change.
    """

    files: Mapping[str, int]
    """File below the run's folder -> bytes, for metrics and episode files."""
    checkpoints: frozenset[str]  # names of checkpoint folders

    @classmethod
    def of(cls, folder: Path, checkpoints: Path) -> DiskSizes:
        """Measure the files of a run's folder."""
        names = [METRICS, *(f"episodes/{name}" for name in list_record_folder(folder / "episodes"))]
        sizes = {name: measure_record_file(folder / name) for name in names if has_record_file(folder / name)}
        saved = [path.name for path in checkpoints.glob("step-*") if step_of_checkpoint(path) >= 0]
        return cls(sizes, frozenset(saved))


def find_changes(
    folder: Path, checkpoints: Path, state: ChainState, *, weights: bool = True, sizes: DiskSizes | None = None
) -> Iterator[Change]:
    """Yield all differences between a run's files and its chain.

    Args:
        folder: The run's folder.
        checkpoints: Folder of the checkpoints.
        state: What the chain says about the files.
        weights: True to read all files of each checkpoint.
        sizes: File sizes measured before the chain was read, or None for a run that is not live.
    """
    sizes = DiskSizes.of(folder, checkpoints) if sizes is None else sizes
    yield from state.changes
    if not state.starts and sizes.files:
        yield Change(FILE, "the chain has no first entry, although episodes or metrics are recorded")
    yield from _check_settings(folder, state)
    for file in sorted(state.files, key=lambda name: (parse_episode_step(name), name)):
        arrays = file.removesuffix(".jsonl") + ".bin"
        if file not in state.removed or has_record_file(folder / file):
            yield from _check_episode_lines(folder, file, state, sizes)
        if arrays not in state.removed or has_record_file(folder / arrays):
            yield from _check_arrays(folder, file, arrays, list(state.iterate_lines(file)))
    yield from _find_foreign_files(state, sizes)
    yield from _check_metric_rows(folder / METRICS, state, sizes)
    yield from _check_checkpoints(checkpoints, state, weights)
    yield from _find_foreign_checkpoints(checkpoints, state, sizes)


def _check_settings(folder: Path, state: ChainState) -> Iterator[Change]:
    """Yield a change for each settings file of the last start whose content differs from its recorded digest."""
    recorded: Mapping[str, str] = state.starts[-1].get("files", {}) if state.starts else {}
    for name, digest in recorded.items():
        try:
            with open_record_file(folder / Path(name).name) as file:
                now = digest_of(file.read())
        except FileNotFoundError:
            yield Change(name, "it is missing")
            continue
        except RecordFileError as error:
            yield Change(name, str(error.strerror))
            continue
        if now != digest:
            yield Change(name, "the file was changed after the start of the run")


def _check_episode_lines(folder: Path, file: str, state: ChainState, sizes: DiskSizes) -> Iterator[Change]:
    """Yield the differences between an episode file's lines and their digests in the chain.

    Args:
        file: path of the file below `folder`, the run's folder.
        sizes: file sizes measured before the chain was read.
    """
    path, line_locations = folder / file, list(state.iterate_lines(file))
    if not has_record_file(path):
        yield Change(file, f"the file is missing, with {len(line_locations)} episodes")
        return
    expected = [line.digest for line, _, _ in line_locations]
    actual = _digest_lines(path, len(expected), sizes.files.get(file, 0))
    names = [f"episode {line.uuid}" for line, _, _ in line_locations]
    yield from _compare_lines(
        file, expected, actual, names, open_end=state.unlinked.admits_file(file, parse_episode_step(file))
    )


def _digest_lines(path: Path, linked: int, size: int) -> list[str]:
    """Return the digest of each complete line of a file.

    Args:
        linked: Number of lines that the chain lists; these are read wherever they end.
        size: Further lines are read only within this number of bytes, the file's size before the chain was read.
    """
    digests: list[str] = []
    end = 0
    with open_record_file(path) as file:
        lines = iter(lambda: next_line(file), b"")
        for line in itertools.takewhile(lambda line: line.endswith(b"\n"), lines):
            end += len(line)
            if len(digests) < linked or end <= size:
                digests.append(digest_of(line))
    return digests


def _compare_lines(
    file: str, expected: Sequence[str], actual: Sequence[str], names: Sequence[str], *, open_end: bool
) -> Iterator[Change]:
    """Yield the differences between the committed lines of a file and its present lines, compared by digest.

    Args:
        file: the file's path, for messages.
        expected: digests of the committed lines, in order.
        actual: digests of the present lines.
        names: descriptions of the committed lines, for messages.
        open_end: True if further lines may follow that are not committed yet.
    """
    if list(actual[: len(expected)]) == list(expected) and (open_end or len(actual) == len(expected)):
        return
    # A line is "changed" if an unknown line stands in its place, else "missing". Equal lines may occur several times.
    expected_counts, actual_counts = Counter(expected), Counter(actual)
    changed: set[int] = set()
    for index, (digest, name) in enumerate(zip(expected, names, strict=True)):
        if actual_counts[digest]:
            actual_counts[digest] -= 1
        elif index < len(actual) and not expected_counts[actual[index]]:
            changed.add(index)
            yield Change(file, f"this line was changed ({name})", index + 1)
        else:
            yield Change(file, f"a line is missing here ({name})", index + 1)
    # Present lines beyond the committed number of equal lines were never committed.
    unclaimed_counts = Counter(expected)
    for index, digest in enumerate(actual):
        if unclaimed_counts[digest]:
            unclaimed_counts[digest] -= 1
        elif index not in changed and not (open_end and index >= len(expected)):
            yield Change(file, "this line was never committed", index + 1)
    if Counter(expected) == Counter(actual):
        index = next(index for index, pair in enumerate(zip(expected, actual, strict=True)) if pair[0] != pair[1])
        yield Change(file, "from here on, the lines are in another order", index + 1)


def _check_arrays(
    folder: Path, file: str, arrays: str, places: Sequence[tuple[LinkedLine, int, int]]
) -> Iterator[Change]:
    """Yield a change for each episode whose arrays differ from their digest in the chain.

    Args:
        file: the episode file, for messages.
        arrays: the `.bin` file with the arrays. Both are paths below `folder`, the run's folder.
        places: each line of the episode file with its byte offset and that of its arrays.
    """
    path = folder / arrays
    if not has_record_file(path):
        yield Change(arrays, f"the file is missing, with the arrays of {len(places)} episodes")
        return
    with open_record_file(path) as blobs:
        end = 0  # bytes claimed by several lines are read only once
        for number, (line, _, offset) in enumerate(places, 1):
            stored = read_record_part(blobs, offset, line.blob_length) if offset >= end else b""
            end = offset + len(stored)
            if digest_of(stored) != line.blob_digest:
                problem = f"the arrays of episode {line.uuid} ({file}:{number}) were changed, at byte {offset}"
                yield Change(arrays, problem)


def _find_foreign_files(state: ChainState, sizes: DiskSizes) -> Iterator[Change]:
    """Yield a change for each file in the episodes folder that the chain neither lists nor may lack."""
    known_files = {name for file in state.files for name in (file, f"{file.removesuffix('.jsonl')}.bin")}
    for file in sorted(sizes.files.keys() - known_files - {METRICS}):
        lines = f"{file.removesuffix('.bin')}.jsonl" if file.endswith(".bin") else file
        step = parse_episode_step(lines)
        if lines not in known_files and not state.unlinked.admits_file(lines, step):
            yield Change(file, "it was never committed")


def _check_metric_rows(path: Path, state: ChainState, sizes: DiskSizes) -> Iterator[Change]:
    """Yield the differences between the rows of metrics.jsonl and their digests in the chain."""
    linked = [digest for _, digest in state.rows]
    size = sizes.files.get(METRICS, 0)
    actual = _digest_lines(path, len(linked), size) if has_record_file(path) else []
    names = [f"a row of step {step}" for step, _ in state.rows]
    unlinked_rows = actual[len(linked) :]
    open_end = state.unlinked.admits_rows(unlinked_rows, _read_row_steps(path, len(unlinked_rows)))
    yield from _compare_lines(METRICS, linked, actual, names, open_end=open_end)


def _read_row_steps(path: Path, count: int) -> list[int]:
    """Return the steps of the last `count` rows of metrics.jsonl, -1 for a row without a step."""
    if not count:
        return []
    with open_record_file(path) as file:
        lines = [line for line in iter(lambda: next_line(file), b"") if line.endswith(b"\n")][-count:]
    steps = []
    for line in lines:
        try:
            steps.append(int(parse_object(line)["step"]))
        except (ValueError, KeyError, TypeError):
            steps.append(-1)
    return steps


def _check_checkpoints(folder: Path, state: ChainState, weights: bool) -> Iterator[Change]:
    """Yield a change for each required checkpoint that is missing, replaced or damaged.

    Args:
        folder: the checkpoints' folder.
        weights: True to read the weights, too.
    """
    for step, digest in sorted(state.required.items()):
        name = f"checkpoints/step-{step}"
        checkpoint, replaced = folder / f"step-{step}", folder / f".step-{step}.replaced"
        if (
            not checkpoint.exists() and replaced.exists()
        ):  # killed as it was saved again: the next start gives it its name
            checkpoint = replaced
        inspected = inspect_checkpoint(checkpoint)
        if isinstance(inspected, str):
            yield Change(name, "it is missing" if not checkpoint.exists() else inspected)
        elif inspected.digest not in (digest, state.replacements.get(step)):
            yield Change(
                f"{name}/{STATE}", f"the file was replaced: its digest is {inspected.digest[:12]}, not {digest[:12]}"
            )
        elif damage := _find_damage(inspected, weights):
            yield Change(name, damage)


def _find_foreign_checkpoints(folder: Path, state: ChainState, sizes: DiskSizes) -> Iterator[Change]:
    """Yield a change for each checkpoint that the chain neither requires nor may lack.

    A replaced checkpoint may remain if its process was killed before the removal.
    """
    for name in sorted(sizes.checkpoints):
        step = step_of_checkpoint(folder / name)
        if step in state.required or state.unlinked.admits_step(step):
            continue
        inspected = inspect_checkpoint(folder / name)
        if (isinstance(inspected, str) or inspected.digest != state.saved.get(step)) and (folder / name).exists():
            yield Change(f"checkpoints/{name}", "it was never committed")


def _find_damage(checkpoint: Checkpoint, weights: bool) -> str:
    """Describe a checkpoint's damaged or extra files, or return "". With `weights`, the weights are read, too."""
    try:
        return checkpoint.damage(tensors=weights) or checkpoint.find_extra_files()
    except FileNotFoundError:  # a live run may remove old checkpoints meanwhile
        return "it is missing"
