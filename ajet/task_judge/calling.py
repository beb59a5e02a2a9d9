"""Calling what users wrote: async code is awaited, plain code runs in a thread of its own.

Invariant: blocking code never holds up the event loop that asks, and code that ends the program ends its own asking
only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ajet.environment.services.threads import in_thread
from ajet.schema.errors import JudgeFailure


async def called(function: Callable[..., Any], *args: Any) -> Any:
    """The function's result: awaited here if it is async, else computed in a thread of its own (a pool's threads
    would be used up by judges that hang)."""
    answer = function(*args) if inspect.iscoroutinefunction(function) else await in_thread(_kept, function, *args)
    return await answer if inspect.isawaitable(answer) else answer


def _kept(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (SystemExit, KeyboardInterrupt) as raised:
        raise JudgeFailure(f"the judge ended the program: {raised!r}") from raised
