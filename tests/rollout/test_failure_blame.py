"""Where the time of an attempt went, and whose failure it is that it ran out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ajet.rollout.failure import classify_timeout, measure_places
from ajet.schema.call import Call


def a_call(index: int, started: float, ended: float, *, agent: str = "a", reply: int | None = 0, finish: Any = "stop"):
    ids, none = np.arange(2, dtype=np.int32), np.zeros(2, np.float32)
    return Call(
        index, agent, agent, True, None, 0, ids, ids, none, none, (), finish, (), None, reply,
        started=started, ended=ended,
    )  # fmt: skip


SAYS, CALLS = {"content": "hm"}, {"content": None, "tool_calls": [{"id": "1"}]}


@pytest.mark.parametrize(
    ("calls", "spent", "place"),
    [
        ([(0, 1, 2, 0)], {"start": 1, "engine": 1, "agent": 8}, "agent"),
        ([(0, 1, 2, 1)], {"start": 1, "engine": 1, "tool": 8}, "tool"),
        ([(0, 1, 2, 1), (0, 7, 8, 0)], {"start": 1, "engine": 2, "tool": 5, "agent": 2}, "agent"),
        ([(0, 1, 2, 1), (1, 3, 4, 0)], {"start": 1, "engine": 2, "tool": 7}, "tool"),
        ([(0, 1, 3, 0), (1, 2, 4, 0)], {"start": 1, "engine": 3, "agent": 6}, "agent"),
        ([(0, 1, 2, 0), (0, 3, 10, None)], {"start": 1, "engine": 8, "agent": 1}, "engine"),
    ],
)
def test_where_the_time_went(calls, spent, place) -> None:
    """(agent, started, ended, the reply): ten seconds in all."""
    made = [
        a_call(at, start, end, agent=str(agent), reply=reply, finish="aborted" if reply is None else "stop")
        for at, (agent, start, end, reply) in enumerate(calls)
    ]
    found, at_end = measure_places(made, [SAYS, CALLS], 0.0, 10.0)
    assert {name: value for name, value in found.items() if value} == spent and at_end == place


@pytest.mark.parametrize(
    ("before", "last", "own"),
    [("error", "aborted", True), ("stop", "aborted", False), ("error", "stop", False), (None, "aborted", False)],
)
def test_time_that_ran_out_while_a_failing_engine_was_asked_again_says_nothing_of_the_model(
    before: str | None, last: str, own: bool
) -> None:
    """What is measured over all attempts leaves it out; one whose time went while the model spoke counts."""
    calls = [a_call(0, 0.0, 4.0, finish=before)] if before else []
    calls.append(a_call(len(calls), 4.0, 10.0, reply=None, finish=last))
    for call in calls:
        call.error = "http://h/v1 hangs" if call.finish == "error" else None
    capture: Any = SimpleNamespace(calls=calls, messages=[SAYS, CALLS])
    failure = classify_timeout(10.0, capture, 0.0, 10.0, shared_loop=False)
    assert (failure.boundary, failure.kind, failure.own) == ("engine", "timeout", own)
    assert ("the model call before had failed: http://h/v1 hangs" in failure.message) == own
