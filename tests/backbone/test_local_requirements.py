"""What the local backbone says before it trains."""

from __future__ import annotations

import pytest
from loguru import logger

from ajet.backbone.local.requirements import warn_of_context
from tests.support.local_fixtures import config_of

TAKEN = 1024
"""Tokens of the model's context."""


@pytest.mark.parametrize(("wanted", "lines"), [(TAKEN + 1, 1), (TAKEN, 0), (None, 0)])
def test_a_context_beyond_the_models_is_named(wanted: int | None, lines: int) -> None:
    logged: list[str] = []
    sink = logger.add(lambda message: logged.append(str(message)), format="{message}")
    try:
        warn_of_context(config_of(**({} if wanted is None else {"rollout__max_model_len": wanted})), TAKEN)
    finally:
        logger.remove(sink)
    assert len(logged) == lines
    assert all(str(TAKEN + 1) in line and str(TAKEN) in line for line in logged)
