"""Deadline: how long an attempt has, and a tool within it.

Invariant: what is inside ends before what it is in: a use of a tool before its attempt, so that its timeout is the
tool's and is recorded, and not the attempt's. The judge's time begins after the attempt's and is no part of it.
"""

from __future__ import annotations

import math
import time

RESERVE, MOST_RESERVED_S = 0.05, 2.0
"""Part of an attempt's time that no tool gets, and at most so many seconds."""


class Deadline:
    """The time that one attempt has, and a tool within it."""

    def __init__(self, attempt: float | None, tool: float | None = None, *, passed: float = 0.0) -> None:
        """Seconds; None: no limit. `passed`: of the attempt's, by now."""
        self._end = math.inf if attempt is None else time.monotonic() + attempt - passed
        self._reserve = 0.0 if attempt is None else min(MOST_RESERVED_S, RESERVE * attempt)
        self._tool = math.inf if tool is None else tool

    @property
    def left(self) -> float:
        """Seconds until the attempt is ended; infinite without a limit."""
        return max(0.0, self._end - time.monotonic())

    @property
    def of_a_tool(self) -> float | None:
        """Seconds that a use which begins now may take; None: as long as it likes."""
        seconds = min(self._tool, max(0.0, self.left - self._reserve))
        return None if math.isinf(seconds) else seconds
