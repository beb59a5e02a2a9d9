"""The loop: when a training saves, whatever its groups come from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ajet.schema.errors import UserError
from ajet.store import TRANSIENT_ERRORS
from ajet.train.interrupts import Interrupts
from ajet.train.loop import train
from ajet.train.sources.replies import RepliesSource
from ajet.train.sources.rollout import RolloutSource
from ajet.train.sources.served import ServedSource
from ajet.train.sources.source import Source
from ajet.train.sources.store import StoreSource
from tests.support.local_fixtures import config_of


class TwoSteps(Source):
    """Has groups for two steps, and then an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def next_groups(self, session: Any) -> Any:
        if session.step == 2 and self.error is not None:
            raise self.error
        return object()


class Session:
    """Counts steps and notes what is saved."""

    def __init__(self, **trainer: Any) -> None:
        self.trainer = config_of(**trainer).trainer_common
        self.step, self.total_steps, self.is_exhausted = 0, 4, False
        self.interrupts = Interrupts()
        self.run = SimpleNamespace(status=SimpleNamespace(set=lambda **more: None))
        self.saved: list[tuple[str, int]] = []

    def assign_credit(self, groups: Any) -> None: ...

    def update(self, batch: Any, groups: Any) -> None: ...

    def commit(self, groups: Any, batch: Any, update: Any) -> None:
        self.step += 1

    def save(self) -> None:
        self.saved.append(("save", self.step))

    def save_interrupted(self) -> None:
        self.saved.append(("interrupted", self.step))

    def save_ended(self) -> None:
        self.saved.append(("ended", self.step))


def run(session: Session, source: Source) -> None:
    train(session, source)  # type: ignore[arg-type]


def test_checkpoints_are_due_by_frequency_and_after_the_last_step() -> None:
    session = Session(save_freq=3)
    run(session, TwoSteps())
    assert session.saved == [("save", 3), ("save", 4), ("save", 4)]


def test_an_interrupt_saves_the_steps_that_are_committed() -> None:
    session = Session(save_freq=0)
    with pytest.raises(KeyboardInterrupt):
        run(session, TwoSteps(KeyboardInterrupt()))
    assert session.saved == [("interrupted", 2)]


def test_a_user_error_saves_unless_nothing_can_be_saved_now() -> None:
    session, away = Session(save_freq=0), TRANSIENT_ERRORS[0]("The store is away.")
    with pytest.raises(UserError):
        run(session, TwoSteps(UserError("Your algorithm failed.")))
    assert session.saved == [("ended", 2)]
    session = Session(save_freq=0)
    with pytest.raises(type(away)):
        run(session, TwoSteps(away))
    assert session.saved == []


def test_only_a_store_saves_nothing_before_a_user_error() -> None:
    kinds = (RolloutSource, ServedSource, RepliesSource, StoreSource)
    assert [kind.saves_before_error for kind in kinds] == [True, True, True, False]
