"""Waiting for whichever comes first: the end of something, a stop, or a time limit."""

from __future__ import annotations

import asyncio
from typing import Any


async def first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of them is done, or the time is over."""
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
