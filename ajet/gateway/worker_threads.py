"""Worker threads: what is too long for the gateway's loop, on threads beside it.

Invariant: a long prompt holds up its own session alone. What is short stays on the loop, where it costs less than the
way to a thread and back. The work touches nothing that the loop changes: it gets what it needs, and answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

LONG = 20_000
"""Characters to render and encode: some 5 ms."""
_A_MESSAGE, _A_TOOL = 40, 500
"""Characters whose encoding costs what a template spends on one."""
_THREADS = 2
"""Templates are rendered in Python: more threads would only wait for each other, and the loop for them."""


class Aside:
    """The threads of one gateway."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ajet-gateway-aside")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """What `work` answers or raises; at once, without a switch of tasks, where it is no longer than LONG. If this
        is cancelled, the work ends by itself and nobody hears of it."""
        if size <= LONG:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def size_of(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, encoded: int = 0) -> int:
    """How much work the prompt of these is, in characters; the first `encoded` messages are only rendered."""
    size = _A_MESSAGE * len(messages) + _A_TOOL * len(tools or ())
    for message in messages[encoded:] if encoded else messages:
        content = message.get("content") or ""
        size += len(content) if isinstance(content, str) else sum(map(_length, content))
        for call in message.get("tool_calls") or ():
            size += len(call["function"].get("arguments") or "")
    return size


def _length(block: Mapping[str, Any]) -> int:
    return len(block.get("text") or (block.get("image_url") or {}).get("url") or "")
