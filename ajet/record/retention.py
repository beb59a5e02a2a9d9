"""Finds and removes files of a run's record by the retention settings.

Invariant: data needed by a stored checkpoint stays: episodes and arrays after the oldest checkpoint, and the newest
checkpoints. A link in the chain names the files before any removal, so removed files stay known with their digests.
Metrics rows are never removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.config.record_file import list_record_folder
from ajet.record.checkpoints import Checkpoints
from ajet.record.episodes import NAME

if TYPE_CHECKING:
    from ajet.record.chain import Chain

KINDS = ("episodes", "arrays", "checkpoints", "leftovers")
LEFTOVERS = (".step-*.partial", ".step-*.pruned", ".step-*.replaced", "step-*.damaged-*")
"""Patterns of leftovers of killed processes and of damaged checkpoints in the checkpoint folder."""


@dataclass(frozen=True, slots=True)
class RetentionBounds:
    """How many of the newest steps keep their episodes and their token arrays. None: all."""

    episodes: int | None
    """Training steps with stored episodes."""
    arrays: int | None
    """Training steps with stored token arrays."""


@dataclass(slots=True)
class FilesToRemove:
    """Files of a run that retention may remove, by kind."""

    paths: dict[str, list[Path]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    steps: list[int] = field(default_factory=list)
    """Steps of the checkpoints to remove."""

    def size(self, kind: str) -> int:
        """Return the bytes of the files of a kind."""
        return sum(_path_size(path) for path in self.paths[kind])

    def __bool__(self) -> bool:
        return any(self.paths.values())


def find_files_to_remove(
    folder: Path, checkpoints: Checkpoints, bounds: RetentionBounds, *, by_hand: bool = False
) -> FilesToRemove:
    """Return the files of the run in `folder` that the retention limits do not keep.

    Episodes and arrays of steps after the oldest remaining checkpoint always stay, because a resume from it needs them.

    Args:
        checkpoints: The run's checkpoints.
        bounds: Numbers of newest steps to keep.
        by_hand: True for `ajet gc`: also checkpoints, which a run removes itself when it saves, and leftovers of
            interrupted saves.
    """
    removal = FilesToRemove()
    expired = checkpoints.outlived() if by_hand else []
    removal.steps = [checkpoint.step for checkpoint in expired]
    removal.paths["checkpoints"] = [checkpoint.path for checkpoint in expired]
    if by_hand:
        leftovers = [path for leftover in LEFTOVERS for path in sorted(checkpoints.folder.glob(leftover))]
        removal.paths["leftovers"] = [path for path in leftovers if not _is_to_come_back(path)]
    remaining_steps = [checkpoint.step for checkpoint in checkpoints.all() if checkpoint.step not in removal.steps]
    files = sorted(_list_episode_files(folder / "episodes"), reverse=True)
    steps = sorted({step for step, _ in files}, reverse=True)
    oldest_step = min(remaining_steps, default=-1)
    for bound, kind in ((bounds.episodes, "episodes"), (bounds.arrays, "arrays")):
        for step in [] if bound is None else [step for step in steps[bound:] if step <= oldest_step]:
            for path in (path for file_step, path in files if file_step == step):
                step_files = (path, path.with_suffix(".bin")) if kind == "episodes" else (path.with_suffix(".bin"),)
                episode_files = removal.paths["episodes"]
                removal.paths[kind] += [
                    file for file in step_files if os.path.lexists(file) and file not in episode_files
                ]
    return removal


def remove_files(folder: Path, chain: Chain, found: FilesToRemove, *, step: int, why: str) -> None:
    """Link the removal in the run's chain, then remove the files.

    Args:
        found: The files to remove.
        step: Step of the run, for the link.
        why: Reason of the removal, for the link.

    Raises:
        UserError: The link cannot be written; nothing is removed.
    """
    files = [str(path.relative_to(folder)) for kind in ("episodes", "arrays") for path in found.paths[kind]]
    chain.commit("gc", step, removed=files, checkpoints=found.steps, why=why)
    for kind in KINDS:
        for path in found.paths[kind]:
            if kind == "checkpoints":  # no reader may take a half-deleted folder for a checkpoint
                path = path.rename(path.with_name(f".{path.name}.pruned"))
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _is_to_come_back(path: Path) -> bool:
    """Return True for a replaced checkpoint whose successor is missing, because the process was killed in between.

    The next start of the run renames it back.
    """
    name = path.name[1:].removesuffix(".replaced")
    return path.name == f".{name}.replaced" and not path.with_name(name).exists()


def _list_episode_files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield (step, path) of each episode file in the folder."""
    for name in list_record_folder(folder):
        if match := NAME.fullmatch(name):
            yield int(match[1]), folder / name


def _path_size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if path.is_dir() and not path.is_symlink():
        return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
    return path.lstat().st_size
