"""checkpoints/step-N/: one checkpoint and the verification of its files.

Invariant: code that loads from a folder calls `require_sound` first, so loaded files match the digests written with the
checkpoint. A `state.json` names only regular files in its own folder; any other is damaged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ajet.config.record_file import (
    RecordFileError,
    measure_record_file,
    open_record_file,
    refuse_special_files,
    split_record_path,
)
from ajet.record.files import LONGEST_LINE, read_json
from ajet.record.held_out import Measurement
from ajet.schema.errors import UserError

NAME = re.compile(r"step-(\d+)")
STATE = "state.json"
OWN = "digest"
"""Key of `state.json` with the digest of the other keys."""
READERS = 4
"""Number of files digested in parallel."""
TENSORS = {".safetensors", ".pt", ".distcp"}
"""How files end that hold weights or the optimizer's state."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint. Its folder `path` is a model in Hugging Face layout, with optimizer and random state."""

    path: Path
    step: int
    score: float | None
    """Higher is better; None without a measurement, or if too few attempts count."""
    state: dict[str, Any] = field(default_factory=dict)
    """State of the training loop: next task of the order, last validation."""
    measured: Measurement | None = None
    """The validation behind the score; None without a measurement at this step."""
    digests: dict[str, str] = field(default_factory=dict, repr=False)
    """Digest of each file at the time of writing."""
    digest: str = ""
    """Digest of `state.json`, and so of the complete checkpoint."""
    chain: str = ""
    """Head of the run's chain at the time of saving; "" without a chain."""

    @property
    def judge(self) -> str:
        """Name of the judge whose rewards measured the checkpoint, or "" if unknown."""
        return self.measured.judge if self.measured is not None else ""

    def better_than(self, other: Checkpoint) -> bool:
        """Return True if this checkpoint replaces `other` as the run's best: better by more than the noise of both.

        Both must have a validation score.
        """
        assert self.measured is not None and other.measured is not None, (
            "only checkpoints with a validation score are compared"
        )
        return self.measured.beats(other.measured)

    def damage(self, *, tensors: bool = True) -> str:
        """Return which files differ from the digests written with the checkpoint, as text, or "" if none does.

        Args:
            tensors: False skips files of weights and optimizer state, which take long to read.
        """
        names = [name for name in self.digests if tensors or Path(name).suffix not in TENSORS]
        with ThreadPoolExecutor(READERS) as pool:
            digests = {name: pool.submit(_current_digest, self.path / name) for name in names}
            changed = [name for name in names if digests[name].result() != self.digests[name]]
        return f"{', '.join(changed)}: the content changed since ajet wrote it" if changed else ""

    def find_extra_files(self) -> str:
        """Return which files of the folder were not written with the checkpoint, as text, or "" if there are none."""
        present = {
            str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_symlink() or not path.is_dir()
        }
        extra = sorted(present - self.digests.keys() - {STATE})
        return f"{', '.join(extra)}: ajet did not write it with the checkpoint" if extra else ""


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the checkpoint in folder `path`, or None if it is missing, incomplete or damaged."""
    checkpoint = inspect_checkpoint(path)
    return checkpoint if isinstance(checkpoint, Checkpoint) else None


def inspect_checkpoint(path: Path) -> Checkpoint | str:
    """Return the checkpoint in folder `path`, or why it is incomplete, as text.

    Reads `state.json` and compares file sizes, not contents.
    """
    try:
        state_file = read_json(path / STATE, LONGEST_LINE)
        step, score, state = state_file["step"], state_file["score"], state_file["state"]
        has_valid_types = (
            isinstance(step, int) and isinstance(score, (int, float, type(None))) and isinstance(state, dict)
        )
        digests, files = dict(state_file["digests"]), dict(state_file["files"])
        measured = Measurement.from_json(state_file.get("measured"))
        own_digest, chain = str(state_file[OWN]), str(state_file.get("chain", ""))
    except FileNotFoundError:
        return f"{STATE} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{STATE} is damaged"
    if not has_valid_types or digests.keys() != files.keys() or own_digest != digest_state(state_file):
        return f"{STATE} is damaged"
    mismatches = [
        mismatch for name, size in files.items() if (mismatch := _describe_size_mismatch(path, str(name), size))
    ]
    return (
        "; ".join(mismatches)
        if mismatches
        else Checkpoint(path, step, score, state, measured, digests, own_digest, chain)
    )


def verify_checkpoint(path: Path, *, tensors: bool = True) -> Checkpoint | str:
    """Return the checkpoint in folder `path` if all files have the recorded digests, else the damage as text.

    Args:
        tensors: False skips files of weights and optimizer state, which take long to read.
    """
    inspected = inspect_checkpoint(path)
    return inspected if isinstance(inspected, str) else inspected.damage(tensors=tensors) or inspected


def require_sound(folder: Path, *, tensors: bool = True) -> None:
    """Raise UserError if the folder is a damaged checkpoint of ajet. Any other folder passes.

    Args:
        folder: The folder that will be loaded from.
        tensors: False skips files of weights and optimizer state, if these will not be loaded.
    """
    refuse_special_files(folder, links=len(split_record_path(folder)[1]) < 2)
    if not (folder / STATE).exists():
        return
    verified = verify_checkpoint(folder, tensors=tensors)
    if isinstance(verified, str) and _is_ajet_checkpoint(folder):
        raise damaged_checkpoint_error(folder, verified)


def damaged_checkpoint_error(folder: Path, why: str) -> UserError:
    """Return the error for a damaged checkpoint.

    Neighbouring checkpoints are verified, to name the undamaged ones in the error.
    """
    other_folders = sorted((path for path in folder.parent.glob("step-*") if path != folder), key=step_of)
    intact = [
        path.name
        for path in other_folders
        if NAME.fullmatch(path.name) and isinstance(verify_checkpoint(path), Checkpoint)
    ]
    return UserError(
        f"The checkpoint {folder.name} is damaged: {why}.",
        where=str(folder),
        expected="a checkpoint with unchanged files",
        do=f"restore the checkpoint from a copy, or rename its folder and use an undamaged one: {', '.join(intact)}"
        if intact
        else "restore the checkpoint from a copy; the run has no other undamaged checkpoint",
    )


def step_of(path: Path) -> int:
    """Return N of a folder `step-N`, or -1 for any other name."""
    match = NAME.fullmatch(path.name)
    return int(match[1]) if match else -1


def digest_state(content: dict[str, Any]) -> str:
    """Return the digest of the content of a `state.json`, without the key that holds this digest."""
    hashed_content = {name: value for name, value in content.items() if name != OWN}
    return hashlib.blake2b(json.dumps(hashed_content, sort_keys=True).encode(), digest_size=16).hexdigest()


def submit_digests(pool: ThreadPoolExecutor, folder: Path, names: Iterable[str]) -> dict[str, Future[str]]:
    """Start to compute the digest of each file in threads, and return the futures by file name."""
    return {name: pool.submit(digest_file, folder / name) for name in names}


def digest_file(path: Path) -> str:
    """Return the digest of a file's content in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    with open_record_file(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _current_digest(path: Path) -> str:
    """Return the digest of a file's content, from a cache if size and time of change are the same as before."""
    file_status = path.lstat()
    return _cached_digest(path, file_status.st_size, file_status.st_mtime_ns)


@lru_cache(maxsize=1024)
def _cached_digest(path: Path, size: int, changed: int) -> str:
    """Return the digest of a file, computed once per process and version of the file.

    Tokenizer, settings and weights are loaded from the same folder one after another.

    Args:
        size: Size in bytes, which with `changed` tells versions of the file apart.
        changed: Time of the last change.
    """
    return digest_file(path)


def _describe_size_mismatch(folder: Path, name: str, size: int) -> str:
    """Return why a file listed in `state.json` is not as written (missing, or of another size), or "".

    A path that leads out of the folder counts as missing.
    """
    relative = Path(name)
    if relative.is_absolute() or ".." in relative.parts:
        return f"{STATE} lists the file {name!r}, which is missing"
    try:
        actual = measure_record_file(folder / relative)
    except RecordFileError as error:
        return f"{name}: {error.strerror}"
    except OSError:
        return f"{name} is missing"
    return "" if actual == size else f"{name} has {actual} bytes, expected {size}"


def _is_ajet_checkpoint(folder: Path) -> bool:
    """True if a damaged `state.json` belongs to a checkpoint. Other programs use the same file name."""
    try:
        content = read_json(folder / STATE, LONGEST_LINE)
    except (OSError, ValueError):
        return NAME.fullmatch(folder.name) is not None
    return isinstance(content, dict) and len({"step", "files", "digests", OWN} & content.keys()) > 1
