"""The private folder of one episode, removed afterwards.

Invariant: answers are read and files written only inside the folder, whatever links the agent creates.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet.record.remove_folder import remove_folder
from ajet.schema.errors import AgentFailure

ANSWER_BYTES = 4 << 20


class EpisodeFolder:
    """The folder: the command runs in `work`; `home` and `task_file` are next to it."""

    def __init__(self, parent: str | None, name: str) -> None:
        """Create the folder. Raises OSError."""
        if parent is not None:
            Path(parent).expanduser().mkdir(parents=True, exist_ok=True)
            parent = str(Path(parent).expanduser().absolute())
        self.root = Path(tempfile.mkdtemp(prefix=f"ajet-{name[:12]}-", dir=parent))
        self.work, self.home, self.task_file = self.root / "work", self.root / "home", self.root / "task.json"

    def fill(self, template: Path | None, files: Mapping[str, str], task: Mapping[str, Any]) -> None:
        """Copy the template, write the files over it, and write the task file."""
        if template is not None:
            shutil.copytree(template, self.work, symlinks=True)
        self.work.mkdir(exist_ok=True)
        self.home.mkdir(exist_ok=True)
        self.task_file.write_text(json.dumps(task, ensure_ascii=False, default=str), encoding="utf-8")
        for name, text in files.items():
            path = self._resolve_inside(name, "the file")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")

    def read_answer(self, name: str) -> str:
        """Return the content of an answer file; "" without the file. Raises AgentFailure for a path outside."""
        path = self._resolve_inside(name, "the answer")
        try:
            number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer must not hold us
        except OSError:
            return ""
        try:
            return os.read(number, ANSWER_BYTES).decode(errors="replace")
        except (IsADirectoryError, BlockingIOError):
            return ""
        finally:
            os.close(number)

    def _resolve_inside(self, name: str, what: str) -> Path:
        """Return the real path of `name`. Raises AgentFailure for a path outside the folder."""
        path, work = Path(os.path.realpath(self.work / name)), Path(os.path.realpath(self.work))
        if not path.is_relative_to(work):
            raise AgentFailure(f"{what} {name} is outside the episode's folder")
        return path

    def remove(self) -> None:
        """Remove the folder, also unreadable and deeply nested files."""
        remove_folder(self.root)
