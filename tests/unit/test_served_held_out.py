"""Held-out tasks of a server: when it plays them itself, and that a step has the numbers of one validation."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.run.serving import serve as loop
from ajet.schema.episode import Group
from ajet.schema.task import Task
from ajet.train.interrupts import Preempted
from ajet.train.sources import served_validation as module
from ajet.train.sources.served_validation import conclude_late, validate_served, will_validate
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


@pytest.mark.parametrize(("every", "apart", "counted"), [(1, [2], {}), (2, [], {3: ["late"]})])
def test_attempts_of_clients_wait_for_the_next_step_unless_the_server_validates_after_that_one_too(
    every: int, apart: list[int], counted: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come in with the second step."""
    learned: dict[int, list[str]] = {}
    written: list[int] = []
    used: list[tuple[list[int], int]] = []

    def learn(training: Any, played: Any, interrupts: Any) -> None:
        training.step += 1
        if played.held_out:
            learned[training.step] = [each.uuid for each in played.held_out]

    made = training(step=0, test_freq=every, save_freq=0, total_training_steps=4, data__train_batch_size=1)
    made.exhausted, made.left = False, []
    made.parts.backbone = SimpleNamespace(version=0)
    made.show_depths, made.save = lambda **more: None, lambda: None
    made.run = SimpleNamespace(
        status=SimpleNamespace(set=lambda **more: None),
        metrics=SimpleNamespace(rows=list),
        episodes=SimpleNamespace(write=lambda step, split, them: written.append(step)),
    )
    desk: Any = SimpleNamespace(results=SimpleQueue(), playing=0, close=lambda: None)
    for order in range(4):
        desk.results.put(Group(Task(main_query="?", task_id=f"{order}"), order, [episode(f"{order}", order=order)]))
        if order == 0:
            desk.results.put(replace(episode("late"), split="validation", order=-1))
    store = SimpleNamespace(use=lambda orders, step: used.append((list(orders), step)), discard=lambda *told: None)
    interrupts: Any = SimpleNamespace(patient=lambda *told, **more: nullcontext(), held=nullcontext)
    monkeypatch.setattr(loop, "learn", learn)
    monkeypatch.setattr(module, "validate", lambda training, parts: setattr(training, "validated", training.step))
    monkeypatch.setattr(module, "conclude_held_out", lambda *told, **more: None)
    loop.train_served(made, SimpleNamespace(desk=desk, store=store, held_out=OWN), interrupts)  # type: ignore[arg-type]
    assert (written, learned) == (apart, counted)
    assert [each for each in used if each[0]] == [([-1], step) for step in apart], "else `learn` says that it is used"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Preempted])
def test_a_step_that_a_second_interrupt_cut_apart_is_neither_saved_nor_recorded(
    kind: type[KeyboardInterrupt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not trained on waits in the store, as after a kill."""
    did: list[str] = []

    def learn(training: Any, *given: Any, **more: Any) -> None:
        training.torn = True
        raise kind

    made = training(step=2, test_freq=0, save_freq=0, total_training_steps=4, data__train_batch_size=1)
    made.torn, made.exhausted, made.left = False, False, []
    made.parts.backbone = SimpleNamespace(version=2)
    made.show_depths, made.save = lambda **more: None, lambda: did.append("save")
    made.warn_torn = lambda: did.append("warn")
    writes = SimpleNamespace(write=lambda *told: did.append("write"))
    made.run = SimpleNamespace(status=SimpleNamespace(set=lambda **more: None), episodes=writes)
    desk: Any = SimpleNamespace(results=SimpleQueue(), playing=0, close=lambda: did.append("close"))
    for order in range(2):
        desk.results.put(Group(Task(main_query="?", task_id=f"{order}"), order, [episode(f"{order}", order=order)]))
    store = SimpleNamespace(use=lambda *told: did.append("use"), discard=lambda *told: did.append("discard"))
    monkeypatch.setattr(loop, "learn", learn)
    interrupts: Any = SimpleNamespace(patient=lambda *told, **more: nullcontext(), held=nullcontext)
    with pytest.raises(kind):
        loop.train_served(made, SimpleNamespace(desk=desk, store=store, held_out=None), interrupts)  # type: ignore[arg-type]
    assert sorted(did) == ["close", "warn"]
