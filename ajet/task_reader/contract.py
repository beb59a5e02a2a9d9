"""What a task reader is.

Invariant: reading is repeatable: the same configuration gives the same tasks in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from ajet.schema.advice import advise_on_path
from ajet.schema.errors import TaskError
from ajet.schema.task import Task

TaskSplit = Literal["train", "validation"]


@runtime_checkable
class TaskReader(Protocol):
    """Provides the tasks of a split. A user's reader implements both members.

    The class is constructed with the composed configuration and chosen by `task_reader.type: file.py->Class`.
    """

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return all tasks of the split, in the same order on each call. Raises TaskError."""
        ...

    @property
    def judge(self) -> Any:
        """An object with `compute_reward(workflow_task, workflow_output)` for these tasks, or None."""
        ...


def find_path(path: str, base: Path) -> Path | None:
    """Return an existing path: in the folder `base` of the YAML, else in the working directory; None if missing."""
    expanded = Path(path).expanduser()
    candidates = [expanded] if expanded.is_absolute() else [base / expanded, Path.cwd() / expanded]
    return next((candidate for candidate in candidates if candidate.exists()), None)


@contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a TaskError that says why the file `path` cannot be read."""
    try:
        yield
    except OSError as error:
        raise TaskError(
            f"{path.name} cannot be read: {error.strerror or error}.",
            where=str(error.filename or path),
            do="check the file's permissions and the disk, or set another file",
        ) from None


def find_file(path: str, base: Path, *, key: str, what: str = "task file") -> Path:
    """Return the path of an existing JSON-lines file, in the folder `base` or the working directory.

    Args:
        key: Configuration key with the path, for errors.
        what: What the file is, for errors.

    Raises:
        TaskError: the file is missing or a folder.
    """
    file = find_path(path, base)
    if file is None:
        raise _missing_path_error(
            path, base, key, what, "a file", "correct the path, or create the file with one JSON object per line"
        )
    if not file.is_file():
        raise TaskError(
            f"The {what} {path} is a folder, not a file.", where=key, expected="a file", do=f"set {key} to a file"
        )
    return file


def require_place(path: str, base: Path, *, key: str, what: str) -> Path:
    """Return the path of an existing file or folder, in the folder `base` or the working directory.

    Args:
        key: Configuration key with the path, for errors.
        what: What the path contains, for errors.

    Raises:
        TaskError: the path does not exist.
    """
    existing = find_path(path, base)
    if existing is None:
        raise _missing_path_error(path, base, key, what, "a file or a folder", "correct the path")
    return existing


def _missing_path_error(path: str, base: Path, key: str, what: str, kind: str, do: str) -> TaskError:
    """Return the error for a path that exists neither in `base` nor in the working directory.

    Args:
        kind: "a file" or "a file or a folder": what was expected.
        do: Advice if no similar path exists.
    """
    folders = list(dict.fromkeys((base.resolve(), Path.cwd().resolve())))
    similar = _similar_paths(Path(path), folders, files=kind == "a file")
    return TaskError(
        f"The {what} {path} does not exist.",
        where=key,
        expected=f"{kind}, in {' or '.join(map(str, folders))}",
        do=advise_on_path(path) or (f"did you mean {similar[0]}?" if similar else do),
    )


def _similar_paths(path: Path, folders: Sequence[Path], *, files: bool) -> list[str]:
    """Return the existing path most similar to a missing one, relative to the first folder with a match, or [].

    Args:
        files: True to ignore folders.
    """
    for folder in folders:
        parent = (folder / path.expanduser()).parent
        names = [entry.name for entry in parent.iterdir() if entry.is_file() or not files] if parent.is_dir() else []
        if similar := get_close_matches(path.name, names, 1):
            return [str(path.parent / similar[0])]
    return []
