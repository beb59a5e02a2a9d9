"""Trackers as a run opens them, and runs that have some.

Only this module names internals of the record that trackers are opened by. `Tracker` and `TrackedRun` are documented:
they are what a tracker of a user's own is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ajet.commands.recorded_run import load_recorded_settings
from ajet.config import load_experiment
from ajet.config.plugins import find_parts
from ajet.record import RunDirectory
from ajet.record.metrics import Metrics, Trackers
from ajet.record.secrets import Redactor
from ajet.record.trackers import TrackedRun, Tracker, open_trackers
from ajet.record.trackers.console import ConsoleTracker

__all__ = [
    "SERVICES", "TrackedRun", "Tracker", "Trackers", "is_console", "open_metrics", "open_run", "open_trackers",
    "recorded_loggers", "tracked_run", "tracker_kinds",
]  # fmt: skip

SERVICES = [name for name in find_parts("tracker") if name != "console"]
"""The names of `trainer_common.logger` that come with ajet, besides the console."""


def tracked_run(folder: Path, resumed: int | None = None, secrets: Mapping[str, str] | None = None) -> TrackedRun:
    """Return a run as its trackers are given it; `secrets`: names and values that no tracker may be told."""
    folder.mkdir(exist_ok=True)
    (folder / "resolved.yaml").write_text("ajet:\n  rollout: {num_repeat: 7}\n  model: {path: 'a:model'}\n")
    return TrackedRun("project", "name/of/1", "0123456789abcdef", folder, resumed, Redactor(dict(secrets or {})))


def is_console(tracker: Tracker) -> bool:
    """True if the console stands in for another tracker."""
    return isinstance(tracker, ConsoleTracker)


def open_metrics(file: Path, trackers: Sequence[Tracker]) -> Metrics:
    """Open the numbers of a run, which go to its file and its trackers."""
    return Metrics(file, trackers=trackers)


@contextmanager
def open_run(yaml: Path, backbone: str, root: Path, *, begins: bool = True) -> Iterator[RunDirectory]:
    """Open the folder of a run of this configuration; `begins` False: it is not begun, and has no trackers yet."""
    experiment = load_experiment(yaml, backbone=backbone, exp_dir=root)
    kind = "debug" if backbone == "debug" else "train"
    with RunDirectory.open(experiment, root=experiment.root, kind=kind) as run:  # type: ignore[arg-type]
        if begins:
            run.take_up()
        yield run


def tracker_kinds(run: RunDirectory) -> list[str]:
    """Return the class names of a run's trackers."""
    return [type(each).__name__ for each in run.metrics.trackers.opened]


def recorded_loggers(run: Path) -> list[str]:
    """Return the trackers that whoever opens this record again would tell."""
    logger = load_recorded_settings(run).ajet.trainer_common.logger
    return [logger] if isinstance(logger, str) else list(logger)
