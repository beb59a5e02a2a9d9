"""Fixtures of the backbones' tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def none_frozen() -> Iterator[None]:
    """As in a process of a run: the test run has its own objects frozen."""
    before = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if before:
        gc.freeze()
