"""What a chain says must be there, and what is there instead.

Invariant: it only reads. What the chain says is believed as far as its links hold together: each has the digest of the
one before and, where a key was given, was made with it. Whatever differs is named: the file, and the line or the place.
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
    open_record_file,
    read_record_part,
    size_of_record_file,
)
from ajet.record.bounded_json import next_line, parse_object
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
from ajet.record.checkpoint import STATE, Checkpoint, look_at
from ajet.record.checkpoint import step_of as step_of_checkpoint
from ajet.record.episodes import NAME
from ajet_proof.auditing.unlinked import UnlinkedWindow


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is not as it was committed."""

    file: str
    """Below the run's folder."""
    what: str
    line: int | None = None
    """Its number, from 1; None where it is no matter of lines."""

    def __str__(self) -> str:
        return f"{self.file}{f':{self.line}' if self.line else ''}: {self.what}"


@dataclass(slots=True)
class ChainState:
    """The state that the links of a chain come to, one after the other."""

    links: int = 0
    head: str = GENESIS
    heads: set[str] = field(default_factory=set)
    """The digests of all links."""
    key: str = ""
    """The name of the key that the last link was made with."""
    unkeyed: int = 0
    """Links without a key."""
    is_key_verified: bool = True
    """Whether the links' own digests could be held to the key that they were made with."""
    run: str = ""
    starts: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)
    """Training step -> the number of its link."""
    files: dict[str, list[LinkedLines]] = field(default_factory=dict)
    rows: list[tuple[int, str]] = field(default_factory=list)
    """Step and digest of each row of metrics.jsonl."""
    saved: dict[int, str] = field(default_factory=dict)
    """Step -> the digest of the checkpoint that was saved last of it."""
    required: dict[int, str] = field(default_factory=dict)
    """The same of those that must be there."""
    replacements: dict[int, str] = field(default_factory=dict)
    """The same of those that were about to take the place of one that must be there: either may be."""
    removed: dict[str, str] = field(default_factory=dict)
    """File -> why it is gone."""
    adopted: Counter[str] = field(default_factory=Counter)
    """Lines that a killed process had written and a later one found, by file."""
    changes: list[Change] = field(default_factory=list)
    """What is wrong with the links themselves."""
    unlinked: UnlinkedWindow = field(default_factory=UnlinkedWindow)
    """What may be on the disk without a link."""

    def apply_link(self, link: Mapping[str, Any]) -> None:
        """Go on by one link. Raises KeyError, TypeError, ValueError for one that says nothing of the kind."""
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
        """Each line that a file must have, with where it and its arrays begin."""
        for each in self.files.get(file, ()):
            yield from each.places()

    def _apply_start(self, link: Mapping[str, Any]) -> None:
        self.starts.append(dict(link))
        self.run = str(link["run"])
        if (base := link.get("from")) is not None:
            self.saved.setdefault(int(base["step"]), str(base["digest"]))
            self.unlinked.begin_after(int(base["step"]))
            if base["own"]:
                self._require_checkpoint(int(base["step"]), str(base["digest"]))

    def _require_checkpoint(self, step: int, digest: str) -> None:
        """Keep, of two checkpoints that may be at a start, the one that is there: it must be from now on."""
        if self.replacements.pop(step, None) == digest:
            self.required[step] = self.saved[step] = digest
        self.required.setdefault(step, digest)

    def _list_recorded_after(self, step: int) -> set[str]:
        """The episode files, and the digests of the rows, of later steps."""
        return {file for file in self.files if parse_episode_step(file) > step} | {
            row for at, row in self.rows if at > step
        }

    def _forget_steps_after(self, after: int) -> None:
        self.files = {file: lines for file, lines in self.files.items() if parse_episode_step(file) <= after}
        self.rows = [row for row in self.rows if row[0] <= after]
        self.steps = {step: link for step, link in self.steps.items() if step <= after}
        for checkpoints in (self.saved, self.required, self.replacements):
            for step in [step for step in checkpoints if step > after]:
                del checkpoints[step]

    def _count_adopted_lines(self, link: Mapping[str, Any]) -> None:
        for block in link.get("episodes", ()):
            self.adopted[block["file"]] += len(block["lines"])
        self.adopted[METRICS] += len(link.get("rows", ()))

    def _apply_removal(self, link: Mapping[str, Any]) -> None:
        for file in link["removed"]:
            self.removed[file] = str(link["why"])
        for step in link["checkpoints"]:
            self.required.pop(int(step), None)


def parse_episode_step(file: str) -> int:
    """The step of an episode file; -1 for any other file."""
    found = NAME.fullmatch(Path(file).name)
    return int(found[1]) if found else -1


def read_chain(folder: Path, key: bytes | None = None) -> ChainState | None:
    """What the chain of the run in `folder` says; None where there is none. Without the key that it was made with, its
    own digests are not held to it."""
    path = folder / FILE
    try:
        opened = open_record_file(path)
    except FileNotFoundError:
        return None
    state, named = ChainState(), key_name(key) if key else ""
    with opened as file:
        for number, line in enumerate(links_of(file), 1):
            try:
                body, digest = split_link(line)
                link = parse_object(body)
                wrong = _find_link_problem(state, link, body, digest, key, named)
                state.apply_link(link)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
                wrong = f"this link is damaged ({type(error).__name__})"
                digest, link = "", {}
            if wrong:
                state.changes.append(Change(FILE, wrong, number))
            state.links, state.head = int(link.get("link", state.links + 1)), digest
            state.key = str(link.get("key", "")) if link else state.key
            state.unkeyed += not state.key
            state.heads.add(digest)
    if key and state.key != named:  # whoever has no key could have written all of it anew
        made = f"with the key {state.key}" if state.key else "without a key"
        state.changes.append(Change(FILE, f"it was made {made}, and {KEY} holds the key {named}"))
    return state


def _find_link_problem(
    state: ChainState, link: Mapping[str, Any], body: bytes, digest: str, key: bytes | None, named: str
) -> str:
    """Why a link cannot follow the one before; "" where it can."""
    own = str(link.get("key", ""))
    if state.key and own != state.key:
        return "this link was made without the key of those before it"
    if own and own != named:
        state.is_key_verified = False
    elif link_digest(body, key if own else None) != digest:
        return "this link was changed"
    if link["link"] != state.links + 1:
        return f"this is link {link['link']}, after link {state.links}: links are missing or stand in another order"
    if state.head and link["earlier"] != state.head:
        return "this link does not follow the one before it, which was changed or put in its place"
    return ""


@dataclass(frozen=True, slots=True)
class DiskSizes:
    """Sizes of the files of a run before its chain was read: what a live run appends later is no change."""

    files: Mapping[str, int]
    """Metrics and episode files, below the run's folder, in bytes."""
    checkpoints: frozenset[str]
    """Names of the folders of checkpoints."""

    @classmethod
    def of(cls, folder: Path, checkpoints: Path) -> DiskSizes:
        """Look at a run's folder."""
        names = [METRICS, *(f"episodes/{name}" for name in list_record_folder(folder / "episodes"))]
        sizes = {name: size_of_record_file(folder / name) for name in names if has_record_file(folder / name)}
        saved = [path.name for path in checkpoints.glob("step-*") if step_of_checkpoint(path) >= 0]
        return cls(sizes, frozenset(saved))


def find_changes(
    folder: Path, checkpoints: Path, state: ChainState, *, weights: bool = True, sizes: DiskSizes | None = None
) -> Iterator[Change]:
    """Whatever is not as the chain says. `checkpoints`: their folder; `weights`: whether all their files are read;
    `sizes`: taken before the chain was read, None for a run that is not live."""
    sizes = DiskSizes.of(folder, checkpoints) if sizes is None else sizes
    yield from state.changes
    if not state.starts and sizes.files:
        yield Change(FILE, "it has no link of a start, and something is recorded")
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
    """The files that each start writes anew."""
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
            yield Change(name, "it was changed since the run began")


def _check_episode_lines(folder: Path, file: str, state: ChainState, sizes: DiskSizes) -> Iterator[Change]:
    path, places = folder / file, list(state.iterate_lines(file))
    if not has_record_file(path):
        yield Change(file, f"it is missing, with {len(places)} episodes")
        return
    expected = [line.digest for line, _, _ in places]
    found = _digest_lines(path, len(expected), sizes.files.get(file, 0))
    names = [f"episode {line.uuid}" for line, _, _ in places]
    yield from _compare_lines(
        file, expected, found, names, open_end=state.unlinked.admits_file(file, parse_episode_step(file))
    )


def _digest_lines(path: Path, linked: int, size: int) -> list[str]:
    """The digest of each whole line. Of lines beyond the first `linked`, those that were within the file's `size`
    before the chain was read."""
    found: list[str] = []
    end = 0
    with open_record_file(path) as file:
        lines = iter(lambda: next_line(file), b"")
        for line in itertools.takewhile(lambda line: line.endswith(b"\n"), lines):
            end += len(line)
            if len(found) < linked or end <= size:
                found.append(digest_of(line))
    return found


def _compare_lines(
    file: str, expected: Sequence[str], found: Sequence[str], names: Sequence[str], *, open_end: bool
) -> Iterator[Change]:
    if list(found[: len(expected)]) == list(expected) and (open_end or len(found) == len(expected)):
        return
    known, there = Counter(expected), Counter(found)
    changed: set[int] = set()
    for at, (digest, name) in enumerate(zip(expected, names, strict=True)):
        if there[digest]:
            there[digest] -= 1
        elif at < len(found) and not known[found[at]]:
            changed.add(at)
            yield Change(file, f"this line was changed ({name})", at + 1)
        else:
            yield Change(file, f"a line is missing here ({name})", at + 1)
    extra = Counter(expected)
    for at, digest in enumerate(found):
        if extra[digest]:
            extra[digest] -= 1
        elif at not in changed and not (open_end and at >= len(expected)):
            yield Change(file, "this line was never committed", at + 1)
    if Counter(expected) == Counter(found):
        at = next(at for at, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1])
        yield Change(file, "its lines stand in another order, from here on", at + 1)


def _check_arrays(
    folder: Path, file: str, arrays: str, places: Sequence[tuple[LinkedLine, int, int]]
) -> Iterator[Change]:
    path = folder / arrays
    if not has_record_file(path):
        yield Change(arrays, f"it is missing, with the arrays of {len(places)} episodes")
        return
    with open_record_file(path) as blobs:
        end = 0  # lines that claim the same bytes again would have them read again and again
        for number, (line, _, at) in enumerate(places, 1):
            found = read_record_part(blobs, at, line.blob_length) if at >= end else b""
            end = at + len(found)
            if digest_of(found) != line.blob_digest:
                what = f"the arrays of episode {line.uuid} ({file}:{number}) were changed, at byte {at}"
                yield Change(arrays, what)


def _find_foreign_files(state: ChainState, sizes: DiskSizes) -> Iterator[Change]:
    """Files among the episodes that no link knows."""
    known = {name for file in state.files for name in (file, f"{file.removesuffix('.jsonl')}.bin")}
    for file in sorted(sizes.files.keys() - known - {METRICS}):
        lines = f"{file.removesuffix('.bin')}.jsonl" if file.endswith(".bin") else file
        step = parse_episode_step(lines)
        if lines not in known and not state.unlinked.admits_file(lines, step):
            yield Change(file, "it was never committed")


def _check_metric_rows(path: Path, state: ChainState, sizes: DiskSizes) -> Iterator[Change]:
    linked = [digest for _, digest in state.rows]
    size = sizes.files.get(METRICS, 0)
    found = _digest_lines(path, len(linked), size) if has_record_file(path) else []
    names = [f"a row of step {step}" for step, _ in state.rows]
    beyond = found[len(linked) :]
    open_end = state.unlinked.admits_rows(beyond, _read_row_steps(path, len(beyond)))
    yield from _compare_lines(METRICS, linked, found, names, open_end=open_end)


def _read_row_steps(path: Path, count: int) -> list[int]:
    """The steps of the last `count` rows; -1 for a row without one."""
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
    for step, digest in sorted(state.required.items()):
        name = f"checkpoints/step-{step}"
        place, replaced = folder / f"step-{step}", folder / f".step-{step}.replaced"
        if not place.exists() and replaced.exists():  # killed as it was saved again: the next start gives it its name
            place = replaced
        found = look_at(place)
        if isinstance(found, str):
            yield Change(name, "it is missing" if not place.exists() else found)
        elif found.digest not in (digest, state.replacements.get(step)):
            yield Change(f"{name}/{STATE}", f"it is another: its digest is {found.digest[:12]}, not {digest[:12]}")
        elif damage := _find_damage(found, weights):
            yield Change(name, damage)


def _find_foreign_checkpoints(folder: Path, state: ChainState, sizes: DiskSizes) -> Iterator[Change]:
    """Checkpoints that no link knows. One that was saved and has made room may be there still: its process was killed
    before it was removed."""
    for name in sorted(sizes.checkpoints):
        step = step_of_checkpoint(folder / name)
        if step in state.required or state.unlinked.admits_step(step):
            continue
        found = look_at(folder / name)
        if (isinstance(found, str) or found.digest != state.saved.get(step)) and (folder / name).exists():
            yield Change(f"checkpoints/{name}", "it was never committed")


def _find_damage(checkpoint: Checkpoint, weights: bool) -> str:
    try:
        return checkpoint.damage(tensors=weights) or checkpoint.find_extra_files()
    except FileNotFoundError:  # a live run removes old ones meanwhile
        return "it is missing"
