"""Whether a run learned anything, and the reason that its rows give."""

from __future__ import annotations

from typing import Any

import pytest

from ajet.record.learned import idle_steps, is_idle, why_nothing


def step(trained: int = 0, **more: Any) -> dict[str, Any]:
    row = {"train/episodes": 8, "train/failed": 0, "train/scored": 8, "credit/groups": 2, "lr": 1e-5, "tasks": [0, 1]}
    row |= {"credit/zero_variance_groups": 0, "train/reward": 0.25, "train/trained_tokens": trained}
    return row | {name.replace("__", "/"): value for name, value in more.items()}


FAILED = step(train__failed=8, train__scored=0)
UNSCORED = step(train__scored=0, train__reward=None)
EQUAL = step(credit__zero_variance_groups=2)
EQUAL_WITH_KL = step(12, credit__zero_variance_groups=2, credit__advantage_abs_mean=0.0)
"""Tokens are trained, and their distance to the reference model is all of the loss."""


def test_idle_steps_are_those_in_a_row_at_the_end() -> None:
    held_out = {"step": 2, "validation/reward": 1.0}
    assert [is_idle(row) for row in (EQUAL, step(12), step(12, lr=0.0), {"tasks": [0]})] == [True, False, True, False]
    assert idle_steps([EQUAL, step(3), EQUAL, held_out, UNSCORED]) == 2 and idle_steps([EQUAL, step(3)]) == 0


def test_a_step_without_any_advantage_is_idle_though_the_reference_model_trains_it() -> None:
    taught, in_parts = EQUAL_WITH_KL | {"credit/advantage_abs_mean": 0.1}, EQUAL_WITH_KL | {"credit/parts": 3}
    assert [is_idle(row) for row in (EQUAL_WITH_KL, taught, in_parts)] == [True, False, False]
    assert why_nothing([EQUAL_WITH_KL, taught]) is None


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([], None),
        ([{"validation/tasks": 3}], None),
        ([EQUAL, step(12)], None),
        ([{"tasks": [0]}], None),
        ([FAILED, FAILED], "every episode failed"),
        ([UNSCORED, UNSCORED], "neither the workflow nor a judge returned one"),
        ([FAILED, UNSCORED], "neither the workflow nor a judge returned one"),
        ([EQUAL, EQUAL], "equal rewards in every step (mean of the last step: 0.25)"),
        ([EQUAL, EQUAL | {"train/failed": 7}], "(mean of the last step: 0.25); 7 of 16 episodes failed"),
        ([EQUAL_WITH_KL, EQUAL], "equal rewards in every step (mean of the last step: 0.25)"),
        ([step(12, lr=0.0), step(9, lr=0.0)], "the learning rate was 0"),
        ([step()], "no sampled token could be trained"),
    ],
)
def test_the_reason_is_what_the_rows_say(rows: list[dict[str, Any]], reason: str | None) -> None:
    found = why_nothing(rows)
    assert found is None if reason is None else found is not None and reason in found
