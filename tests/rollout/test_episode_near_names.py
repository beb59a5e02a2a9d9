"""Fields of a WorkflowOutput that are nearly the name of one that means something."""

from __future__ import annotations

import pytest
from loguru import logger

from ajet.record.rate_limiter import RateLimiter
from ajet.rollout import episode
from ajet.schema.task import WorkflowOutput


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"rewrd": 1.0}, ["rewrd=…", "reward?"]), ({"success": True}, ["is_success?"]), ({"score": 1}, [])],
)
def test_a_field_that_is_nearly_another_is_said_once(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], said: list[str]
) -> None:
    monkeypatch.setattr(episode, "warned_names", RateLimiter(interval_s=600))
    told: list[str] = []
    sink = logger.add(told.append, format="{message}")
    try:
        for _ in range(2):
            episode.warn_of_near_names(WorkflowOutput(**fields))
    finally:
        logger.remove(sink)
    assert len(told) == bool(said) and all(words in told[0] for words in said)
