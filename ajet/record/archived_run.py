"""ArchivedRun: a run whose folder another start renamed, and how the folder is restored.

Invariant: the renames of the run folder and of external checkpoint folders count as one step. A mark in the folder
(`aside.json`) is written before the first rename and stays until the new run has produced a result. After a kill the
next start finds the mark and restores the folders. A run is never resumed without the checkpoints.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ajet.record.files import read_json, write_atomically
from ajet.schema.errors import UserError

MARK_FILE = "aside.json"
"""Mark of an unfinished archiving, in the archived folder."""


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """An earlier run whose folders another start renamed to EXPERIMENT.old-N, with the paths before and after."""

    folder: Path
    """Original path (EXPERIMENT), now used by another run."""
    old: Path  # EXPERIMENT.old-N
    checkpoint_folders: tuple[Path, ...]
    """Original paths of checkpoint folders outside the run folder."""

    @classmethod
    def archive_run(cls, folder: Path, checkpoints: Iterable[Path]) -> ArchivedRun:
        """Rename the run folder and its external checkpoint folders to the first free EXPERIMENT.old-N.

        If a rename fails, the earlier ones are undone.

        Args:
            folder: The run folder.
            checkpoints: Folders that may hold the run's checkpoints. Those inside the run folder move with it.

        Raises:
            OSError: The run folder cannot be renamed.
            UserError: An external checkpoint folder cannot be renamed.
        """
        run_paths = (folder, folder.resolve())
        outside_folders = tuple(
            checkpoint
            for checkpoint in dict.fromkeys(checkpoints)
            if checkpoint.is_dir()
            and not any(
                path.is_relative_to(run_path)
                for path, run_path in zip((checkpoint, checkpoint.resolve()), run_paths, strict=True)
            )
        )
        number = 1
        while any(path.with_name(f"{folder.name}.old-{number}").exists() for path in (folder, *outside_folders)):
            number += 1
        archived = cls(folder, folder.with_name(f"{folder.name}.old-{number}"), outside_folders)
        write_atomically(
            folder / MARK_FILE, json.dumps({"checkpoints": [str(path) for path in outside_folders]}) + "\n", sync=True
        )
        os.replace(folder, archived.old)
        for checkpoint_folder in outside_folders:
            try:
                os.replace(checkpoint_folder, archived.archived_path(checkpoint_folder))
            except OSError as error:  # for example a mount point, or another user's folder
                archived.restore_run()
                raise UserError(
                    f"The checkpoints of the earlier run {folder.name} cannot be moved out of the way: "
                    f"{error.strerror}.",
                    where=str(checkpoint_folder),
                    expected=f"a folder that this user may rename to {archived.archived_path(checkpoint_folder).name}",
                    do="move the folder away yourself, or set another ajet.experiment_name",
                ) from error
        return archived

    @classmethod
    def find_archived(cls, folder: Path) -> ArchivedRun | None:
        """Return the archived run of `folder` whose replacement in `folder` has no result yet, or None.

        The mark in the archived folder says so; `remove_mark` deletes it at the first result.
        """
        pattern = re.compile(re.escape(folder.name) + r"\.old-(\d+)")
        marked_folders = [
            path
            for path in folder.parent.glob("*.old-*")
            if pattern.fullmatch(path.name) and (path / MARK_FILE).exists()
        ]
        if not marked_folders:
            return None
        old = max(marked_folders, key=lambda path: int(path.name.rpartition("-")[2]))
        with suppress(ValueError, TypeError, KeyError):  # a damaged mark, or one that names no folder of this run's
            outside_folders = tuple(Path(path) for path in read_json(old / MARK_FILE)["checkpoints"])
            if all(path.is_absolute() and path.name == folder.name for path in outside_folders):
                return cls(folder, old, outside_folders)
        return None

    def archived_path(self, outside: Path) -> Path:
        """Return the path EXPERIMENT.old-N to which a checkpoint folder outside the run folder is renamed."""
        return outside.with_name(self.old.name)

    @property
    def moves(self) -> list[tuple[Path, Path]]:
        """(original path, present path) of the renamed run folder and of each external checkpoint folder."""
        return [(self.folder, self.old), *((folder, self.archived_path(folder)) for folder in self.checkpoint_folders)]

    @property
    def is_restorable(self) -> bool:
        """True if the external checkpoint folders can be renamed back: no other folder has taken an original path."""
        return not any(folder.exists() and self.archived_path(folder).exists() for folder in self.checkpoint_folders)

    @property
    def removal_path(self) -> Path:
        """Temporary path of the folder of a start without a result, while that folder is being deleted."""
        return self.folder.with_name(f".{self.folder.name}.gone")

    def next_ended_path(self) -> Path:
        """Return a free path EXPERIMENT.ended-N for the folder of a start without a result.

        Its log may say why it ended.
        """
        number = 1
        while (path := self.folder.with_name(f"{self.folder.name}.ended-{number}")).exists():
            number += 1
        return path

    def restore_run(self, keep: Path | None = None) -> None:
        """Move the archived folders back to the original paths, and remove the mark.

        Checkpoints move first, because a run folder that is back in its place could be resumed without them.

        Args:
            keep: new path for the folder of the start that ended without a result. None removes that folder.

        Raises:
            OSError: another start has created the folder again.
        """
        shutil.rmtree(self.removal_path, ignore_errors=True)  # a start killed during a restore leaves this folder
        try:
            if self.folder.exists():
                os.replace(self.folder, keep or self.removal_path)
            for folder in self.checkpoint_folders:
                if self.archived_path(folder).exists():
                    os.replace(self.archived_path(folder), folder)
            self._restore_folder()
        finally:
            shutil.rmtree(self.removal_path, ignore_errors=True)
        (self.folder / MARK_FILE).unlink(missing_ok=True)

    def _restore_folder(self) -> None:
        """Rename the archived run folder back. If that fails, undo the renames of the checkpoint folders."""
        try:
            os.replace(self.old, self.folder)
        except OSError:  # the folder is another run's, and these are not its checkpoints
            for folder in self.checkpoint_folders:
                if folder.exists():
                    os.replace(folder, self.archived_path(folder))
            raise

    def remove_mark(self) -> None:
        """Remove the mark of an unfinished archiving: the new run has a result, so the archived one keeps its name."""
        with suppress(OSError):  # the archive may be read-only
            (self.old / MARK_FILE).unlink(missing_ok=True)
