"""`bp("TAG")`: a permanent breakpoint that stops only on request (`ajet --debug TAG`).

Invariant: without an active tag the call does nothing and imports nothing. An active tag stops once per process, at the
first episode; later episodes would only queue behind the same prompt (`once=False` stops each).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

TAGS_VARIABLE = "AJET_DEBUG_TAGS"
"""Environment variable that carries the active tags ("A|B") to other processes of a run."""

_lock = threading.Lock()
_stopped: set[str] = set()


def activate(tags: str | Iterable[str]) -> None:
    """Activate tags ("A|B" or a list) in this process and later child processes.

    An empty value deactivates all tags. Tags that have stopped before stop again.
    """
    names = tags.split("|") if isinstance(tags, str) else tags
    active = [name.strip() for name in names if name.strip()]
    with _lock:
        _stopped.clear()
        if active:
            os.environ[TAGS_VARIABLE] = "|".join(active)
        else:
            os.environ.pop(TAGS_VARIABLE, None)


def bp(tag: str | None = None, *, once: bool = True) -> None:
    """Stop in the calling frame if the tag is active. `ajet --debug TAG` makes tags active.

    The debugger is the attached one (VS Code), else the one that `breakpoint()` is set to (in a Ray worker, Ray's),
    else pdb.

    Args:
        tag: Name of the breakpoint. None: stop if any tag is active.
        once: Stop at most once per process.
    """
    active = os.environ.get(TAGS_VARIABLE, "")
    if not active or (tag is not None and (not tag or tag not in active.split("|"))):
        return
    frame = sys._getframe(1)
    breakpoint_name = tag if tag is not None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    with _lock:
        if once and breakpoint_name in _stopped:
            return
        _stopped.add(breakpoint_name)
    _stop_in_debugger(frame)


def _stop_in_debugger(frame: FrameType) -> None:
    """Stop at a frame in the attached debugger (VS Code's pydevd), else in the user's `breakpoint()`, else in pdb."""
    debugger: Any = sys.modules.get("pydevd")
    if debugger is not None and debugger._is_attached():
        debugger.settrace(
            suspend=True, trace_only_current_thread=True, patch_multiprocessing=False, stop_at_frame=frame
        )
    elif sys.breakpointhook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
        breakpoint()
    else:
        from pdb import Pdb

        # Python allows signal handlers in the main thread only, so pdb must not set one.
        Pdb(nosigint=True).set_trace(frame)
