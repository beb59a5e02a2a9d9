"""Held-out tasks of a server: when it plays them itself, and that a step has the numbers of one validation."""

from __future__ import annotations

from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.schema.episode import Group
from ajet.schema.task import Task
from ajet.train.interrupts import Interrupts, Preempted
from ajet.train.loop import train
from ajet.train.session import TrainingSession
from ajet.train.sources import served as module
from ajet.train.sources.served import ServedSource
from tests.support.local_fixtures import config_of
from tests.support.record_fixtures import episode

OWN: Any = object()
"""The parts that play."""


class Session(TrainingSession):
    """A session without model, store and record: a step is only counted, and what is asked of it noted."""

    def __init__(self, *, step: int, validated: int = -1, measured: bool = False, **settings: Any) -> None:
        self.experiment = SimpleNamespace(ajet=config_of(**settings))  # type: ignore[assignment]
        self.step, self.validated_step, self.saved_step, self.is_checkpoint_outdated = step, validated, step, False
        self.last_validation = {"validation/reward": 0.5} if measured else {}
        self.tasks, self.is_step_partial, self.idle_steps, self.interrupts = None, False, 0, Interrupts()
        self.leftover_orders = []
        self.late: list[int] = []
        self.sink = SimpleNamespace(  # type: ignore[assignment]
            commit_held_out=lambda episodes, step: self.late.append(len(episodes))
        )
        self.backbone = SimpleNamespace(version=step)  # type: ignore[assignment]
        self.did: list[str] = []
        self.used: list[tuple[list[int], int]] = []
        self.written: list[int] = []
        self.learned: dict[int, list[str]] = {}
        self.fails: type[BaseException] | None = None
        self.rows: list[dict[str, Any]] = []
        self.run = SimpleNamespace(  # type: ignore[assignment]
            status=SimpleNamespace(set=lambda **more: None),
            metrics=SimpleNamespace(rows=lambda: self.rows),
            episodes=SimpleNamespace(write=lambda step, *more: self.written.append(step)),
        )
        self.store = SimpleNamespace(  # type: ignore[assignment]
            use=lambda orders, step: self.used.append((list(orders), step)), discard=lambda *told: None
        )
        self._given_up = SimpleNamespace(log_new=lambda tasks: {}, count=0)  # type: ignore[assignment]

    def show_depths(self, **more: int) -> None: ...

    def save(self) -> None:
        self.did.append("save")

    def warn_partial_step(self) -> None:
        self.did.append("warn")

    def assign_credit(self, taken: Any) -> Any: ...

    def update(self, batch: Any, taken: Any) -> Any:
        if self.fails is not None:
            self.is_step_partial = True
            raise self.fails

    def commit(self, taken: Any, batch: Any, update: Any) -> None:
        self.step += 1
        if taken.held_out:
            self.learned[self.step] = [each.uuid for each in taken.held_out]


def source_of(session: Session, held_out: Any, desk: Any = None) -> ServedSource:
    return ServedSource(desk, session.experiment.ajet, held_out)


def desk_of(groups: int) -> Any:
    desk: Any = SimpleNamespace(results=SimpleQueue(), open_count=0, has_pending=False, close=lambda: None)
    for order in range(groups):
        desk.results.put(Group(Task(main_query="?", task_id=f"{order}"), order, [episode(f"{order}", order=order)]))
        if order == 0 and groups > 2:
            desk.results.put(replace(episode("late"), split="validation", order=-1))
    return desk


def note_played(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have a validation only noted."""
    played: list[Any] = []

    def play(session: TrainingSession, parts: Any) -> None:
        played.append(parts)
        session.note_validation()

    monkeypatch.setattr(module, "validate", play)
    return played


@pytest.mark.parametrize(
    ("made", "plays"),
    [
        (dict(step=0, test_freq=2), False),
        (dict(step=0, test_freq=2, val_before_train=True), True),
        (dict(step=2, test_freq=2), True),
        (dict(step=2, test_freq=2, validated=2), False),
        (dict(step=3, test_freq=2), False),
        (dict(step=3, test_freq=2, total_training_steps=3), False),
        (dict(step=3, test_freq=2, total_training_steps=3, measured=True), True),
        (dict(step=4, test_freq=0, total_training_steps=4), False),
    ],
)
def test_the_server_plays_when_a_launch_would_and_what_an_interruption_kept_from_happening(
    made: dict[str, Any], plays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, played = Session(**made), note_played(monkeypatch)
    source_of(session, None).validate_if_due(session)
    assert played == []
    source_of(session, OWN).validate_if_due(session)
    assert played == [OWN] * plays
    assert session.is_checkpoint_outdated == plays, "the checkpoint is to hold what was measured"


@pytest.mark.parametrize("rows", [[], [{"step": 3, "validation/episodes": 1}], [{"step": 2, "validation/episodes": 1}]])
@pytest.mark.parametrize("own", [None, OWN])
def test_attempts_that_came_too_late_make_no_second_row(rows: list[dict[str, Any]], own: Any) -> None:
    session = Session(step=3, test_freq=3)
    session.rows = rows
    desk = desk_of(0)
    desk.results.put(replace(episode("late"), split="validation", order=-1))
    source_of(session, own, desk).finish(session)
    apart = own is not None or any(row["step"] == 3 for row in rows)  # the server's own is there, or is to come
    assert session.late == [1] * (not apart) and session.written == [3] * apart
    source_of(session, own, desk_of(0)).finish(session)
    assert len(session.written) == apart


@pytest.mark.parametrize(("every", "apart", "counted"), [(1, [2], {}), (2, [], {3: ["late"]})])
def test_attempts_of_clients_wait_for_the_next_step_unless_the_server_validates_after_that_one_too(
    every: int, apart: list[int], counted: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come in with the second step."""
    session = Session(step=0, test_freq=every, save_freq=0, total_training_steps=4, data__train_batch_size=1)
    note_played(monkeypatch)
    train(session, source_of(session, OWN, desk_of(4)))
    assert (session.written, session.learned) == (apart, counted)
    assert [each for each in session.used if each[0]] == [([-1], step) for step in apart], "else `commit` uses it"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Preempted])
def test_a_step_that_a_second_interrupt_cut_apart_is_neither_saved_nor_recorded(kind: type[KeyboardInterrupt]) -> None:
    """What is not trained on waits in the store, as after a kill."""
    session = Session(step=2, test_freq=0, save_freq=0, total_training_steps=4, data__train_batch_size=1)
    session.fails = kind
    desk = desk_of(2)
    desk.close = lambda: session.did.append("close")
    with pytest.raises(kind):
        train(session, source_of(session, None, desk))
    assert sorted(session.did) == ["close", "warn"] and session.written == [] and session.used == []


@pytest.mark.parametrize("left", [0, 1])
def test_a_checkpoint_is_saved_again_only_for_what_clients_left(left: int) -> None:
    """Else the next start would take up what is recorded as left over."""
    session = Session(step=2, test_freq=0, save_freq=1, total_training_steps=4)
    source_of(session, None, desk_of(left)).finish(session)
    assert session.is_checkpoint_outdated == bool(left) and session.did == ["save"]
    assert session.leftover_orders == [0] * left
