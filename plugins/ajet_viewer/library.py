"""Lists and reads the run directories below one folder.

Invariant: a run is named by its path below the folder; only names found by listing the folder are opened, and links
leading out of the folder are not followed. A file is read again only after a change.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ajet.config.record_file import open_record_file
from ajet.record.evaluations import FILE
from ajet.record.files import parse_object, read_json, read_last_lines, read_tail
from ajet.record.held_out import (
    NUMBERS,
    format_scored_count,
    format_short_validation,
    format_validation,
    scored_count_metrics,
)
from ajet.record.learned import LEARNED_NOTHING
from ajet.record.logs import main_log
from ajet.record.plain_json import strict_json
from ajet.record.reward_hacking import GAMED
from ajet.record.status import find_run_state, read_status
from ajet.schema.errors import AjetError, UserError
from ajet_viewer.notes import read_notes

MARKS = ("status.json", "run.json", "metrics.jsonl")
"""A folder with at least one of these files is a run folder."""
WITHIN = ("debug", "eval", "prompt")
"""Subfolders of a run with further runs."""
REWARDS = ("train/reward", "debug/reward")
GIVEN = ("train/rows", "loss"), ("validation/loss",)
"""Metrics of runs that train on given replies (supervised), in training and validation."""
ROWS = (*((name,) for name in REWARDS), *GIVEN, NUMBERS, scored_count_metrics("train"), scored_count_metrics("debug"))
"""Names of the metrics read for the run table; the values of one tuple are taken from the same row."""
Stamp = tuple[int, int, int] | None
"""(inode, bytes, modification time in ns) of a file; None without the file."""
T = TypeVar("T")


class MissingError(AjetError):
    """A requested object does not exist, or not any more."""


class Library:
    """Lists the runs below a folder, and caches their rows for the run table. Thread-safe.

    Args:
        root: the folder of runs.
        only: name of the only run to show, or None for all.
    """

    def __init__(self, root: Path, *, only: str | None = None) -> None:
        self.root, self.only = root.resolve(), only
        self._parsed_files: dict[Path, tuple[Stamp, Any]] = {}
        """File -> (stamp, parsed content)."""

    @classmethod
    def of(cls, folder: Path) -> Library:
        """Create the library of a folder of runs, or of a single run directory."""
        if any((folder / mark).exists() for mark in MARKS):
            return cls(folder.parent, only=folder.name)
        return cls(folder)

    def names(self) -> list[str]:
        """Return the names of the runs, sorted."""
        return sorted(str(path.relative_to(self.root)) for path in self._list_run_folders())

    def path(self, name: str) -> Path:
        """Return the folder of a run. Raises MissingError if there is no run with this name."""
        folder = self.root / name
        if self._may_name_run(name) and self._is_inside(folder) and _is_run(folder):
            return folder
        raise MissingError(f"There is no run named {name}.")

    def run(self, name: str) -> dict[str, Any]:
        """Return the row of a run for the run table. Raises MissingError if there is no run with this name."""
        return self._read_row(self.path(name))

    def runs(self) -> list[dict[str, Any]]:
        """Return the rows of all runs for the run table, last changed first. Unchanged files are not read again."""
        folders = list(self._list_run_folders())
        rows = [self._read_row(folder) for folder in folders]
        present = {folder / name for folder in folders for name in ("status.json", "metrics.jsonl", FILE)}
        for removed in self._parsed_files.keys() - present:
            self._parsed_files.pop(removed, None)
        return sorted(rows, key=lambda row: row["updated"] or 0, reverse=True)

    def _read_row(self, folder: Path) -> dict[str, Any]:
        """Return the row of a run. Files are read if they changed, process state and notes always."""
        status = self._read_cached(folder, "status.json", _read_run_status)
        measured = self._read_cached(folder, "metrics.jsonl", _read_measures)
        evaluation = self._read_cached(folder, FILE, _read_evaluation) if status.get("kind") == "eval" else {}
        return _build_row(self.root, folder, status, measured) | evaluation

    def _read_cached(self, folder: Path, name: str, read: Callable[[Path], T]) -> T:
        """Return the parsed content of a run's file, from the cache if the file has not changed. `read` parses it."""
        path = folder / name
        stamp = _read_stamp(path)  # taken before the read, so that a file written meanwhile is read again
        cached = self._parsed_files.get(path)
        if cached is not None and cached[0] == stamp:
            content: T = cached[1]
            return content
        content = read(folder)
        self._parsed_files[path] = (stamp, content)
        return content

    def _may_name_run(self, name: str) -> bool:
        """True if a name is RUN, RUN/debug/NAME or RUN/eval/NAME, and does not lead out of the folder."""
        path_parts = name.split("/")
        has_run_form = len(path_parts) == 1 or (len(path_parts) == 3 and path_parts[1] in WITHIN)
        has_safe_parts = "\0" not in name and not any(part in ("", ".", "..") for part in path_parts)
        return (
            has_run_form
            and has_safe_parts
            and self.only in (None, path_parts[0])
            and self._is_inside(self.root / path_parts[0])
        )

    def _list_run_folders(self) -> Iterator[Path]:
        """Yield the folders of all runs: those in the folder, and the debug, evaluation and prompt runs below them."""
        names = [self.only] if self.only is not None else [path.name for path in list_folders(self.root)]
        for name in names:
            folder = self.root / name
            if not self._is_inside(folder):
                continue
            if _is_run(folder):
                yield folder
            for kind in WITHIN:
                yield from (path for path in list_folders(folder / kind) if self._is_inside(path) and _is_run(path))

    def _is_inside(self, folder: Path) -> bool:
        # The only run to show may itself be a link: the user named it.
        """True if a folder lies in the library's folder, or in the only run to show, after links are followed."""
        base = self.root if self.only is None else (self.root / self.only).resolve()
        return folder.resolve().is_relative_to(base)


def _build_row(root: Path, folder: Path, status: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Build the row of a run for the run table."""
    return {
        "name": str(folder.relative_to(root)),
        "kind": status.get("kind", "train"),
        "state": find_run_state(status),
        LEARNED_NOTHING: status.get(LEARNED_NOTHING) or None,
        "problem": status.get("problem") or None,
        GAMED: _get_alarm_text(status.get(GAMED)),
        "phase": status.get("phase"),
        "step": _to_finite(status.get("step")),
        "steps": _to_finite(status.get("steps")),
        "started": _to_finite(status.get("started")),
        "updated": _to_finite(status.get("updated")) or _find_change_time(folder),
        **measured,
        "notes": read_notes(folder),
    }


def _read_measures(folder: Path) -> dict[str, Any]:
    """Return the columns of the run table that come from metrics.jsonl."""
    values = read_last_values(folder / "metrics.jsonl", ROWS)
    split_prefix = "debug" if values["train/reward"] is None else "train"
    return {
        **{name: values[name] for name in (*REWARDS, *NUMBERS)},
        "given": values["train/rows"] is not None,
        "loss": values["loss"] if values["train/rows"] is not None else None,
        "validation/loss": values["validation/loss"],
        "reward_over": format_scored_count(values, split_prefix) or None,
        "reward_short": _format_scored(values, split_prefix),
        "held_out": format_validation(values) if values["validation/tasks"] is not None else None,
        "held_out_short": format_short_validation(values),
    }


def _read_evaluation(folder: Path) -> dict[str, Any]:
    """Return the model of an evaluation, and a key that is equal for evaluations that differ only in their model."""
    try:
        evaluation = read_json(folder / FILE)
    except (OSError, ValueError):
        return {}
    identity = evaluation.get("identity")
    identity_without_model = {**identity, "model": None} if isinstance(identity, dict) else None
    digest = (
        hashlib.blake2b(strict_json(identity_without_model).encode(), digest_size=8).hexdigest()
        if identity_without_model
        else None
    )
    return {"model": str(evaluation.get("model") or folder.name), "comparison": digest}


def _format_scored(counts: Mapping[str, float | None], prefix: str) -> str | None:
    """Return "(scored/all)" if some episodes have no score, else None.

    Args:
        counts: metrics of the run.
        prefix: "train" or "debug".
    """
    scored, episodes = counts[f"{prefix}/scored"], counts[f"{prefix}/episodes"]
    return None if scored is None or episodes is None or scored == episodes else f"({scored:.0f}/{episodes:.0f})"


def read_log_end(folder: Path, lines: int = 40, window: int = 1 << 16) -> str:
    """Return the last lines of a run's log, or "" without a log.

    Args:
        lines: maximum number of lines.
        window: maximum number of bytes read.
    """
    try:
        with open_record_file(main_log(folder)) as file:
            text = read_tail(file, window).decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _get_alarm_text(alarm: Any) -> str | None:
    """Return the text of an alarm in a run's status, or None without an alarm."""
    return str(alarm["text"]) if isinstance(alarm, dict) and "text" in alarm else None


def _to_finite(value: Any) -> int | float | None:
    """Return a finite number unchanged, and None for anything else, which JSON could not carry."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def read_last_values(
    metrics: Path, rows: Sequence[tuple[str, ...]], window: int = 1 << 18
) -> dict[str, int | float | None]:
    """Return the last values of metrics in the end of a metrics.jsonl.

    Args:
        metrics: the file.
        rows: tuples of metric names. The values of a tuple come from the last row that has a number for its first name.
        window: number of bytes at the end of the file that are searched.

    Returns:
        Values by name, None if not found.
    """
    values: dict[str, int | float | None] = {name: None for names in rows for name in names}
    try:
        with open_record_file(metrics) as file:
            lines = read_last_lines(file, window)
    except OSError:
        return values
    missing_names_by_key = {f'"{names[0]}"'.encode(): names for names in rows}
    for line in reversed(lines):
        # Searching for the key's text is much faster than parsing the line.
        keys_in_line = [json_key for json_key in missing_names_by_key if json_key in line]
        if not keys_in_line:  # most rows have none of the wanted metrics
            continue
        try:
            row = parse_object(line)
        except ValueError:
            continue
        for json_key in keys_in_line:
            if _to_finite(row.get(missing_names_by_key[json_key][0])) is not None:
                values.update({name: _to_finite(row.get(name)) for name in missing_names_by_key.pop(json_key)})
        if not missing_names_by_key:
            break
    return values


def _read_stamp(path: Path) -> Stamp:
    """Return the stamp by which a change of a file is noticed, or None without the file."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read_run_status(folder: Path) -> dict[str, Any]:
    """Return a run's status, or {} if it cannot be read."""
    try:
        return read_status(folder) or {}
    except (OSError, UserError):
        return {}


def _find_change_time(folder: Path) -> float | None:
    """Return when one of the files that mark a run was changed last, in seconds since 1970, or None."""
    try:
        return max((folder / mark).stat().st_mtime for mark in MARKS if (folder / mark).exists())
    except (OSError, ValueError):
        return None


def list_folders(folder: Path) -> list[Path]:
    """Return the subfolders of a folder, sorted, or [] if it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    """True if a folder has at least one of the files that mark a run."""
    return any((folder / mark).exists() for mark in MARKS)
