"""Engines that take half a minute to start: one of each for all contract tests (they run in one worker)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def bench() -> Iterator[Any]:
    """A vLLM engine, and the model whose weights it is given."""
    from tests.contract.vllm_bench import Bench

    made = Bench()
    yield made
    made.engine.close()
