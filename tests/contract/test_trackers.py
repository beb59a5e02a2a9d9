"""One suite over every Tracker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet.config.schema.choices import TRACKERS
from ajet.record.metrics import Metrics
from ajet.record.trackers import TrackedRun, Tracker, open_trackers


@pytest.fixture(params=sorted(name for name, part in TRACKERS.items() if part.code))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tracker(name: str, tmp_path: Path) -> Iterator[Tracker]:
    (opened,) = open_trackers(name, TrackedRun("p", "r", "1", tmp_path))
    yield opened
    opened.close()


def test_it_is_what_its_name_says_and_no_stand_in(name: str, tracker: Tracker) -> None:
    assert name in type(tracker).__module__


def test_it_takes_any_numbers_at_any_step_in_any_order(tracker: Tracker) -> None:
    for step in (1, 2, 2, 7, 3):
        tracker.metrics(step, {"train/reward": 0.5, "loss": -1e30, "a/b/c": 0.0, "ünï": 1.0})
    tracker.metrics(8, {})


def test_close_may_be_called_twice(tracker: Tracker) -> None:
    tracker.metrics(1, {"train/reward": 0.5})
    tracker.close()
    tracker.close()


def test_it_gets_numbers_only_and_leaves_them_as_they_are(tracker: Tracker, tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", trackers=[tracker])
    metrics.log(1, {"train/reward": 0.5, "loss": float("nan"), "grad_norm": float("inf")}, tasks=[1, 2])
    (kept,) = metrics.rows()
    assert kept["train/reward"] == 0.5 and kept["tasks"] == [1, 2]
    metrics.close()


def test_two_runs_do_not_meet(name: str, tmp_path: Path) -> None:
    folders = [tmp_path / each for each in ("one", "two")]
    for folder in folders:
        (opened,) = open_trackers(name, TrackedRun("p", "r", "1", folder))
        opened.metrics(1, {"train/reward": 0.5})
        opened.close()
    written = [sorted(path.relative_to(folder).parts[0] for path in folder.rglob("*")) for folder in folders]
    assert written[0] == written[1] and not [path for path in tmp_path.iterdir() if path not in folders]
