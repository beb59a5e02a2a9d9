from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ajet.workflow.resources import Resources


async def cancels() -> None:
    """As a library does whose scopes are left by another task than entered them."""
    raise asyncio.CancelledError


def exits() -> None:
    sys.exit("the environment's own code")


@pytest.mark.parametrize("last", [cancels, exits])
def test_whatever_one_does_as_it_is_closed_the_others_are_closed(last: Callable[[], Any]) -> None:
    closed: list[str] = []
    resources = Resources()
    resources.callback(closed.append, "first")
    resources.callback(last)
    resources.close()
    assert closed == ["first"]


def test_one_that_exits_in_a_task_leaves_the_others_closed() -> None:
    closed: list[str] = []
    resources = Resources()
    resources.callback(closed.append, "first")
    resources.callback(exits)
    asyncio.run(resources.aclose())
    assert closed == ["first"]
