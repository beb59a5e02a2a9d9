"""Trackers: outputs for metrics and episodes besides the run directory, such as a screen, a file or a service.

Invariant: a tracker never stops a run. A tracker that cannot be opened, or fails later, is logged once and dropped; the
console replaces a tracker that cannot be opened, and `metrics.jsonl` is always written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from loguru import logger

from ajet.config.plugin import load_code
from ajet.config.plugins import find_all_parts, find_part, find_parts
from ajet.config.references import resolve_class
from ajet.config.schema.choices import is_reference
from ajet.record.trackers.contract import CLOSING_S, PATIENCE_S, TrackedRun, Tracker
from ajet.schema.errors import MissingExtraError, UserError

__all__ = ["TrackedRun", "Tracker", "open_trackers"]

T = TypeVar("T")


def open_trackers(names: str | Iterable[str], run: TrackedRun, *, base: Path | None = None) -> list[Tracker]:
    """Open the trackers named by `trainer_common.logger` and return them.

    A tracker that cannot be opened is logged with the reason, and replaced by the console.

    Args:
        names: Names or references of tracker classes.
        run: Facts about the run.
        base: Folder of relative references. None: the working directory.
    """
    requested = [names] if isinstance(names, str) else list(names)
    trackers: dict[str, Tracker] = {}
    shipped = find_parts("tracker")
    for name in dict.fromkeys(requested):
        try:
            tracker_class = _tracker_class(name, base or Path.cwd())
            trackers[name] = call_within(find_patience_seconds(tracker_class), partial(tracker_class, run), what=name)
            continue
        except MissingExtraError as error:
            reason = f"{error.what} {error.do}"
        except UserError as error:
            reason = error.what
        except Exception as error:  # noqa: BLE001 - a service's client or the user's code
            reason = f"{type(error).__name__}: {str(error).rstrip('.')}."
        logger.warning(
            "the tracker {} cannot be used: {} The numbers are printed and written to metrics.jsonl.", name, reason
        )
        if "console" not in trackers:
            trackers["console"] = load_code(shipped["console"].code)(run)
    return list(trackers.values())


def _tracker_class(name: str, base: Path) -> type[Tracker]:
    """Return the class of a tracker by its name or reference. Raises UserError for an unknown one."""
    if not is_reference(name) and find_part("tracker", name) is None:
        raise UserError(f"There is no tracker of this name (known: {', '.join(find_all_parts('tracker'))}).")
    does = ("metrics", "episodes", "close")
    like = "ajet.record.trackers.Tracker"
    return resolve_class(name, "tracker", base=base, key="ajet.trainer_common.logger", methods=does, like=like)


def find_patience_seconds(kind: type[Any], *, closing: bool = False) -> float | None:
    """Return how many seconds a call of a tracker may take, or None without a limit.

    Args:
        kind: The tracker's class. A user's class need not derive from `Tracker`, and then has the default limits.
        closing: True for the last call, `close`.
    """
    patience: float | None = getattr(kind, "patience_s", PATIENCE_S)
    return getattr(kind, "closing_s", CLOSING_S) if closing and patience is not None else patience


def call_within(seconds: float | None, call: Callable[[], T], *, what: str) -> T:
    """Return the result of `call`, which runs in a thread for at most `seconds`. None: no limit, in this thread.

    A call over the limit goes on in a daemon thread, which does not keep the process alive.

    Raises:
        TimeoutError: The limit is exceeded.
        BaseException: What `call` raised.
    """
    if seconds is None:
        return call()
    results: list[T] = []
    errors: list[BaseException] = []

    def run_call() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=run_call, name=f"ajet-{what}", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"the tracker did not answer within {seconds:g} s")
    return results[0]
