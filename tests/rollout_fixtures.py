"""The names of tests/support/rollouts.py for tests that are no gates yet."""

from tests.support.rollouts import (
    AnswerJudge,
    HoldsNothing,
    Stage,
    deadline_passes,
    renderer,
    stage,
    tasks,
    threads,
    time_is_up,
)

__all__ = [
    "AnswerJudge",
    "HoldsNothing",
    "Stage",
    "deadline_passes",
    "renderer",
    "stage",
    "tasks",
    "threads",
    "time_is_up",
]
