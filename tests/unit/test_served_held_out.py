"""Held-out tasks of a server: when it plays them itself, and that a step has the numbers of one validation."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.run import served_held_out as module
from ajet.run.served_held_out import conclude_late, validate_served, will_validate
from tests.local_fixtures import config_of
from tests.record_fixtures import episode

OWN: Any = object()
"""The parts that play."""


def training(*, step: int, validated: int = -1, measured: bool = False, **settings: Any) -> Any:
    parts = SimpleNamespace(experiment=SimpleNamespace(ajet=config_of(**settings)))
    numbers = {"validation/reward": 0.5} if measured else {}
    return SimpleNamespace(parts=parts, step=step, validated=validated, last_validation=numbers, saved_step=step)


@pytest.mark.parametrize(
    ("made", "plays"),
    [
        (training(step=0, test_freq=2), False),
        (training(step=0, test_freq=2, val_before_train=True), True),
        (training(step=2, test_freq=2), True),
        (training(step=2, test_freq=2, validated=2), False),
        (training(step=3, test_freq=2), False),
        (training(step=3, test_freq=2, total_training_steps=3), False),
        (training(step=3, test_freq=2, total_training_steps=3, measured=True), True),
        (training(step=4, test_freq=0, total_training_steps=4), False),
    ],
)
def test_the_server_plays_when_a_launch_would_and_what_an_interruption_kept_from_happening(
    made: Any, plays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[Any] = []
    monkeypatch.setattr(module, "validate", lambda training, parts: played.append(parts))
    validate_served(made, OWN)
    assert played == [OWN] * plays and (made.saved_step == -1) == plays, "the checkpoint is to hold what was measured"
    validate_served(made, None)
    assert len(played) == plays
    if made.step:
        made.validated = -1
        assert will_validate(made, OWN, made.step) == (plays or made.step == 2) and not will_validate(made, None, 2)


@pytest.mark.parametrize("rows", [[], [{"step": 3, "validation/episodes": 1}], [{"step": 2, "validation/episodes": 1}]])
@pytest.mark.parametrize("own", [None, OWN])
def test_attempts_that_came_too_late_make_no_second_row(
    rows: list[dict[str, Any]], own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    concluded: list[Any] = []
    written: list[tuple[int, str, list[str]]] = []
    monkeypatch.setattr(module, "conclude_held_out", lambda episodes, run, **more: concluded.append(more["step"]))
    made = training(step=3, test_freq=3)
    made.on_step, made.total_steps = None, 9
    made.run = SimpleNamespace(
        metrics=SimpleNamespace(rows=lambda: rows),
        episodes=SimpleNamespace(write=lambda step, split, them: written.append((step, split, [e.uuid for e in them]))),
    )
    late = [replace(episode("late"), split="validation")]
    conclude_late(late, made, own)
    apart = own is not None or any(row["step"] == 3 for row in rows)  # the server's own is there, or is to come
    assert concluded == [3] * (not apart) and written == [(3, "validation", ["late"])] * apart
    conclude_late([], made, own)
    assert len(written) == apart
