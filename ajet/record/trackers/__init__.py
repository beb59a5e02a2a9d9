"""Trackers: where numbers go besides `metrics.jsonl`.

In: step and finite numbers. Out: a screen, a file, a service. Invariant: a tracker never stops a run: one that is
not installed is warned about once and left out; the console and `metrics.jsonl` always remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from loguru import logger

from ajet.schema.errors import MissingExtra


class Tracker(Protocol):
    """Takes the numbers of one event after the other."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One event's numbers; all are finite."""
        ...

    def close(self) -> None:
        """Flush and let go. Idempotent."""
        ...


def _console(folder: Path, resumed_step: int | None) -> Tracker:
    from ajet.record.trackers.console import ConsoleTracker

    return ConsoleTracker()


def _tensorboard(folder: Path, resumed_step: int | None) -> Tracker:
    from ajet.record.trackers.tensorboard import TensorboardTracker

    return TensorboardTracker(folder / "tensorboard", resumed_step)


TRACKERS: dict[str, Callable[[Path, int | None], Tracker]] = {"console": _console, "tensorboard": _tensorboard}
"""Name in `trainer_common.logger` -> opens it for a run folder; the step is the one resumed from, or None."""


def open_trackers(names: str | Iterable[str], folder: Path, *, resumed_step: int | None = None) -> list[Tracker]:
    """The trackers that `trainer_common.logger` names; the console stands in for those that cannot be opened."""
    wanted = [names] if isinstance(names, str) else list(names)
    opened: dict[str, Tracker] = {}
    for name in dict.fromkeys(wanted):
        known = TRACKERS.get(name)
        try:
            if known is not None:
                opened[name] = known(folder, resumed_step)
                continue
            reason = f"ajet has no tracker of this name yet (known: {', '.join(TRACKERS)})."
        except MissingExtra as error:
            reason = f"{error.what} {error.do}"
        logger.warning("logger {}: {} The numbers go to the console and to metrics.jsonl.", name, reason)
        opened.setdefault("console", _console(folder, resumed_step))
    return list(opened.values())
