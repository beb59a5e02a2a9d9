"""A run that another one's start set aside: under which name it is kept, and how it gets its own back.

Invariant: the renames of its folder and of its checkpoints elsewhere count as one. A mark that goes with the folder
(`aside.json`) says that it was set aside, from before the first rename until something comes of the run that has its
place: whoever comes after a kill finds the mark, and puts back what there is. A run is never taken up without its
checkpoints.
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

from ajet.record.bounded_json import read_json
from ajet.record.files import write_atomically
from ajet.schema.errors import UserError

FILE = "aside.json"


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """The place where a run was, and the one where it is."""

    folder: Path
    """EXPERIMENT, whose place another run has by now."""
    old: Path
    """EXPERIMENT.old-N."""
    checkpoint_folders: tuple[Path, ...]
    """Folders of its checkpoints that do not lie in it, where they were."""

    @classmethod
    def archive_run(cls, folder: Path, checkpoints: Iterable[Path]) -> ArchivedRun:
        """Rename the folder of a run to the first EXPERIMENT.old-N that is free, and with it those of its checkpoints
        that lie elsewhere, or nothing at all. Raises OSError; UserError for what lies elsewhere."""
        within = (folder, folder.resolve())
        outside = tuple(
            each
            for each in dict.fromkeys(checkpoints)
            if each.is_dir()
            and not any(place.is_relative_to(own) for place, own in zip((each, each.resolve()), within, strict=True))
        )
        number = 1
        while any(each.with_name(f"{folder.name}.old-{number}").exists() for each in (folder, *outside)):
            number += 1
        archived = cls(folder, folder.with_name(f"{folder.name}.old-{number}"), outside)
        write_atomically(folder / FILE, json.dumps({"checkpoints": [str(each) for each in outside]}) + "\n", sync=True)
        os.replace(folder, archived.old)
        for each in outside:
            try:
                os.replace(each, archived.archived_path(each))
            except OSError as error:  # where a disk is mounted, say, or of somebody else
                archived.restore_run()
                raise UserError(
                    f"The checkpoints of {folder.name} cannot be set aside: {error.strerror}.",
                    where=str(each),
                    expected=f"a folder that can be renamed to {archived.archived_path(each).name}",
                    do="move it away yourself, or set another ajet.experiment_name",
                ) from error
        return archived

    @classmethod
    def find_archived(cls, folder: Path) -> ArchivedRun | None:
        """The run whose place `folder` has, if nothing has come yet of the one that took it."""
        named = re.compile(re.escape(folder.name) + r"\.old-(\d+)")
        marked = [
            path for path in folder.parent.glob("*.old-*") if named.fullmatch(path.name) and (path / FILE).exists()
        ]
        if not marked:
            return None
        old = max(marked, key=lambda path: int(path.name.rpartition("-")[2]))
        with suppress(ValueError, TypeError, KeyError):  # a damaged mark, or one that names no folder of this run's
            outside = tuple(Path(each) for each in read_json(old / FILE)["checkpoints"])
            if all(each.is_absolute() and each.name == folder.name for each in outside):
                return cls(folder, old, outside)
        return None

    def archived_path(self, outside: Path) -> Path:
        """The place of a folder of its checkpoints meanwhile."""
        return outside.with_name(self.old.name)

    @property
    def moves(self) -> list[tuple[Path, Path]]:
        """Each folder's place before, and its place now."""
        return [(self.folder, self.old), *((each, self.archived_path(each)) for each in self.checkpoint_folders)]

    @property
    def is_restorable(self) -> bool:
        """Whether nobody else has checkpoints in the run's own place."""
        return not any(each.exists() and self.archived_path(each).exists() for each in self.checkpoint_folders)

    @property
    def removal_path(self) -> Path:
        """The name on its way out of the start that had the run's place."""
        return self.folder.with_name(f".{self.folder.name}.gone")

    def next_ended_path(self) -> Path:
        """The name of that start's folder where it stays: its log may say what ended it."""
        number = 1
        while (place := self.folder.with_name(f"{self.folder.name}.ended-{number}")).exists():
            number += 1
        return place

    def restore_run(self, keep: Path | None = None) -> None:
        """The run is where it was, its checkpoints before it; what lies in its place, of which nothing came, is `keep`
        from then on, or goes. Raises OSError where another start has made that folder anew."""
        shutil.rmtree(self.removal_path, ignore_errors=True)  # of one that was killed here
        try:
            if self.folder.exists():
                os.replace(self.folder, keep or self.removal_path)
            for each in self.checkpoint_folders:
                if self.archived_path(each).exists():
                    os.replace(self.archived_path(each), each)
            self._restore_folder()
        finally:
            shutil.rmtree(self.removal_path, ignore_errors=True)
        (self.folder / FILE).unlink(missing_ok=True)

    def _restore_folder(self) -> None:
        try:
            os.replace(self.old, self.folder)
        except OSError:  # the folder is another run's, and these are not its checkpoints
            for each in self.checkpoint_folders:
                if each.exists():
                    os.replace(each, self.archived_path(each))
            raise

    def remove_mark(self) -> None:
        """Something comes of the run that has its place: it stays under its other name."""
        with suppress(OSError):  # an archive that nobody may write to
            (self.old / FILE).unlink(missing_ok=True)
