"""Library: the run directories below one folder.

Invariant: a run is named by its path below the folder, and only names that a look into the folder has found are ever
opened; a link that leads out of the folder is not followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ajet.record.bounded_json import parse_object
from ajet.record.denominators import numbers_of, over
from ajet.record.gamed import GAMED
from ajet.record.held_out import NUMBERS, short, words
from ajet.record.learned import LEARNED_NOTHING
from ajet.record.logs import main_log
from ajet.record.status import read_status, recorded_processes
from ajet.record.viewer.notes import notes_of
from ajet.schema.errors import AjetError, UserError

MARKS = ("status.json", "run.json", "metrics.jsonl")
"""A folder with one of these is a run."""
WITHIN = ("debug", "eval")
"""Folders inside a run whose folders are runs too."""


class Missing(AjetError):
    """The thing asked for is not there, or not there any more."""


class Library:
    """`root` holds runs; with `only`, one of them is all there is."""

    def __init__(self, root: Path, *, only: str | None = None) -> None:
        self.root, self.only = root.resolve(), only

    @classmethod
    def of(cls, folder: Path) -> Library:
        """The library of a folder of runs, or of one run directory."""
        if any((folder / mark).exists() for mark in MARKS):
            return cls(folder.parent, only=folder.name)
        return cls(folder)

    def names(self) -> list[str]:
        """The runs' names, in order."""
        return sorted(str(path.relative_to(self.root)) for path in self._folders())

    def path(self, name: str) -> Path:
        """A run's folder. Raises Missing."""
        for folder in self._folders():
            if str(folder.relative_to(self.root)) == name:
                return folder
        raise Missing(f"There is no run named {name} any more, or there never was.")

    def runs(self) -> list[dict[str, Any]]:
        """A row a run, the one that changed last first."""
        rows = [summary(self.root, folder) for folder in self._folders()]
        return sorted(rows, key=lambda row: row["updated"] or 0, reverse=True)

    def _folders(self) -> Iterator[Path]:
        names = [self.only] if self.only is not None else [path.name for path in _listed(self.root)]
        for name in names:
            folder = self.root / name
            if not self._inside(folder):
                continue
            if _is_run(folder):
                yield folder
            for kind in WITHIN:
                yield from (path for path in _listed(folder / kind) if self._inside(path) and _is_run(path))

    def _inside(self, folder: Path) -> bool:
        return folder.resolve().is_relative_to(self.root)


def summary(root: Path, folder: Path) -> dict[str, Any]:
    """A run in a row: name, state, step, last rewards, when it began and last changed (seconds since the epoch)."""
    status = _status(folder)
    rewards = last_values(folder / "metrics.jsonl", ("train/reward", "debug/reward"), together=NUMBERS)
    played = "debug" if rewards["train/reward"] is None else "train"
    counts = last_values(folder / "metrics.jsonl", (), together=numbers_of(played))
    return {
        "name": str(folder.relative_to(root)),
        "kind": status.get("kind", "train"),
        "state": state(status),
        LEARNED_NOTHING: status.get(LEARNED_NOTHING) or None,
        "problem": status.get("problem") or None,
        GAMED: _text(status.get(GAMED)),
        "phase": status.get("phase"),
        "step": _number(status.get("step")),
        "steps": _number(status.get("steps")),
        "started": _number(status.get("started")),
        "updated": _number(status.get("updated")) or _changed(folder),
        **rewards,
        "reward_over": over(counts, played) or None,
        "reward_short": _short(counts, played),
        "held_out": words(rewards) if rewards["validation/tasks"] is not None else None,
        "held_out_short": short(rewards),
        "notes": notes_of(folder),
    }


def _short(counts: dict[str, float | None], prefix: str) -> str | None:
    """Scored of all, where that is not all."""
    scored, episodes = counts[f"{prefix}/scored"], counts[f"{prefix}/episodes"]
    return None if scored is None or episodes is None or scored == episodes else f"({scored:.0f}/{episodes:.0f})"


def log_end(folder: Path, lines: int = 40, window: int = 1 << 16) -> str:
    """The last lines of a run's log; "" without one."""
    try:
        with main_log(folder).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - window))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def state(status: dict[str, Any]) -> str:
    """running, what its outcome says, or stopped: its process is gone without a word."""
    if status.get("outcome"):
        return str(status["outcome"])
    for process, role in recorded_processes(status):
        if role == "run":
            return "running" if process.alive() else "stopped"
    return "unknown"


def _text(alarm: Any) -> str | None:
    """The words of an alarm."""
    return str(alarm["text"]) if isinstance(alarm, dict) and "text" in alarm else None


def _number(value: Any) -> int | float | None:
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def last_values(
    metrics: Path, names: tuple[str, ...], window: int = 1 << 18, *, together: tuple[str, ...] = ()
) -> dict[str, float | None]:
    """The last value of each metric within the file's last bytes; those of `together` from one row, the last that has
    the first of them."""
    found: dict[str, float | None] = dict.fromkeys((*names, *together))
    try:
        with metrics.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - window))
            lines = file.read().split(b"\n")
    except OSError:
        return found
    for line in reversed(lines[(1 if size > window else 0) : -1]):
        try:
            row = parse_object(line)
        except ValueError:
            continue
        for name in names:
            if found[name] is None and isinstance(row.get(name), (int, float)):
                found[name] = row[name]
        if together and found[together[0]] is None and together[0] in row:
            found.update({name: _number(row.get(name)) for name in together})
        if None not in found.values():
            break
    return found


def _status(folder: Path) -> dict[str, Any]:
    try:
        return read_status(folder) or {}
    except (OSError, UserError):
        return {}


def _changed(folder: Path) -> float | None:
    try:
        return max((folder / mark).stat().st_mtime for mark in MARKS if (folder / mark).exists())
    except (OSError, ValueError):
        return None


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in MARKS)
