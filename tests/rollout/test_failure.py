"""Whose failure an attempt's end is, and whether another attempt may mend it."""

from __future__ import annotations

import pytest

from ajet.schema.errors import EngineFailure
from tests.support.gateways import ScriptedReply
from tests.support.rollouts import TokenRequest, flows, stage


@pytest.mark.parametrize(("retryable", "attempts"), [(True, 2), (False, 1)])
def test_attempts_at_a_dead_engine_are_not_repeated(retryable: bool, attempts: int) -> None:
    def fail(request: TokenRequest) -> ScriptedReply:
        raise EngineFailure("the server is gone", retryable=retryable)

    with stage(flows.Asks, fail, max_retries=1, breaker={"share": 0.9, "window": 64}) as made:
        [group] = made.play(1)
    for episode in group.episodes:
        assert episode.failure is not None
        assert (episode.failure.boundary, episode.failure.retryable) == ("engine", retryable)
        assert episode.attempts == attempts


def test_no_outage_is_waited_out_at_a_dead_engine() -> None:
    def fail(request: TokenRequest) -> ScriptedReply:
        raise EngineFailure("the server is gone", retryable=False)

    breaker = {"share": 0.4, "window": 8, "patience": 600}
    with stage(flows.Asks, fail, max_retries=0, breaker=breaker) as made:  # hangs for 600 s if it waits
        groups = made.play(8)
    assert all(episode.attempts == 1 for group in groups for episode in group.episodes)
