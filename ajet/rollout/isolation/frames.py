"""Where the person's own code stands, in a thread or in a task that waits.

Invariant: a place is in one of their files, never the library's line that their code waits in.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ajet.config.plugins import list_package_roots
from ajet.environment.services.threads import in_thread

_FOREIGN = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    *map(str, list_package_roots()),
    "<",
)


def users_frame(frame: FrameType) -> FrameType | None:
    """The innermost frame that is neither the standard library's, an installed package's, nor ours."""
    here: FrameType | None = frame
    while here is not None and here.f_code.co_filename.startswith(_FOREIGN):
        here = here.f_back
    return here


def place(frame: FrameType) -> str:
    """file:line, and in which function."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def stands(thread: int | None, task: asyncio.Task[Any] | None) -> str:
    """Where the code of a thread (its ident) stands, or that of a task which waits; "" where it is none of theirs."""
    frame = sys._current_frames().get(thread or 0)
    found = users_frame(frame) if frame is not None else None
    if found is None and task is not None:
        for waiting in _awaiting(task.get_coro()):
            found = users_frame(waiting) or _in_own_thread(waiting) or found
    return place(found) if found is not None else ""


def _in_own_thread(waiting: FrameType) -> FrameType | None:
    """Where the person's code stands in the thread that `in_thread` waits for, if that is what waits here."""
    if waiting.f_code is not in_thread.__code__:
        return None
    thread = waiting.f_locals.get("thread")
    frame = sys._current_frames().get(getattr(thread, "ident", None) or 0)
    return users_frame(frame) if frame is not None else None


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of what it awaits, outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
