"""Breaker: pauses new attempts while what is outside of the model fails.

Invariant: it opens when, of the last `window` attempts that ended, more than `share` were lost to the engine, a tool,
the environment, the sandbox or the judge, in a way that another attempt may mend. While it is open nothing begins but
one probe at a time, at growing intervals; a probe that is not lost closes it. An attempt that was lost is concluded
only when it is known that no outage took it: those that an outage took are played again, so that no group is trained on
the survivors. After `patience` it gives up, and lost attempts are failed episodes like any other. On one loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from loguru import logger

from ajet.record.console import counted
from ajet.rollout.own_loop import wait_first
from ajet.schema.episode import Failure

if TYPE_CHECKING:
    from ajet.config.schema.rollout import BreakerSettings

OUTSIDE = frozenset({"engine", "tool", "environment", "sandbox", "judge"})
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the first probe; each further one waits twice as long, up to the longest."""


def lost(failure: Failure | None) -> bool:
    """Whether an attempt ended by something outside that may mend."""
    return failure is not None and failure.retryable and failure.boundary in OUTSIDE


class Breaker:
    """Pauses new attempts of one rollout while what is outside of the model fails."""

    def __init__(self, settings: BreakerSettings, *, on: bool = True) -> None:
        self._share, self._window, self._patience = settings.share, settings.window, settings.patience
        if not on:
            self._share = None
        self._recent: deque[str] = deque(maxlen=self._window)
        """Of the last attempts: the boundary that each was lost at, or ""."""
        self._under_way: set[Turn] = set()
        """Episodes that are played, or wait for their turn."""
        self._ended = 0
        self._doubtful: deque[tuple[asyncio.Future[bool], int]] = deque()
        """Of lost attempts, the first one first: whether an outage took them, and how many had ended by then."""
        self._opened: float | None = None
        self._pause, self._next_probe, self._probing = FIRST_PAUSE, 0.0, False
        self._changed = asyncio.Event()
        self._why = ""

    @property
    def is_open(self) -> bool:
        """Whether nothing may begin."""
        return self._opened is not None

    @property
    def why(self) -> str:
        """The failure for which it was opened."""
        return self._why

    def begins(self) -> Turn:
        """An episode is to be played, and may wait for its turn."""
        turn = Turn(self)
        self._under_way.add(turn)
        return turn

    def may_probe(self) -> bool:
        """Whether the next attempt may begin although it is open: then it is the probe."""
        if self._probing or time.monotonic() < self._next_probe:
            return False
        self._probing = True
        return True

    async def admitted(self, stopped: asyncio.Future[str]) -> bool:
        """Wait until an attempt may begin, or is `stopped`. Answers whether it is the probe."""
        while self.is_open and not stopped.done():
            if self.may_probe():
                return True
            wait = asyncio.ensure_future(self._changed.wait())
            left = None if self._probing else max(0.0, self._next_probe - time.monotonic())
            await wait_first(wait, stopped, timeout=left)
            wait.cancel()
        return False

    def ended(self, failure: Failure | None, *, probe: bool = False, aborted: bool = False) -> None:
        """An attempt has ended. `aborted`: it says nothing."""
        if aborted:
            if probe:
                self._probing = False
                self._change()
            return
        is_lost = lost(failure)
        self._ended += 1
        if probe:
            self._probed(is_lost)
        elif not self.is_open:
            self._recent.append(failure.boundary if is_lost and failure is not None else "")
            self._look()
        while self._doubtful and self._ended - self._doubtful[0][1] >= self._window:
            doubt, _ = self._doubtful.popleft()
            if not doubt.done():
                doubt.set_result(False)

    async def _took(self, turn: Turn, stopped: asyncio.Future[str]) -> bool:
        if self._share is None or stopped.done():
            return False
        if self.is_open:
            return True
        if len(self._recent) + len(self._under_way) < self._window:  # too few to tell
            return False
        doubt: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._doubtful.append((doubt, self._ended))
        turn.leave()
        await wait_first(doubt, stopped)
        self._under_way.add(turn)
        return doubt.done() and doubt.result()

    def _leaves(self, turn: Turn) -> None:
        self._under_way.discard(turn)
        if not self._under_way:
            self._settle(False)

    def _settle(self, outage: bool) -> None:
        for doubt, _ in self._doubtful:
            if not doubt.done():
                doubt.set_result(outage)
        self._doubtful.clear()

    def _look(self) -> None:
        if self._share is None or len(self._recent) < self._window:
            return
        boundaries = Counter(boundary for boundary in self._recent if boundary)
        if boundaries.total() <= self._share * self._window:
            return
        self._opened = time.monotonic()
        self._pause, self._next_probe, self._probing = FIRST_PAUSE, self._opened + FIRST_PAUSE, False
        self._why = f"{boundaries.total()} of the last {counted(self._window, 'attempt')} were lost to " + ", ".join(
            f"the {boundary} ({count})" for boundary, count in boundaries.most_common()
        )
        logger.warning("no new attempts: {} (rollout.breaker); one is tried now and then until one is not", self._why)
        self._settle(True)
        self._change()

    def _probed(self, is_lost: bool) -> None:
        self._probing = False
        if self._opened is None:
            return
        now = time.monotonic()
        if not is_lost:
            logger.warning("attempts go on after {:.0f} s: one was not lost", now - self._opened)
            self._close()
        elif now - self._opened > self._patience:
            logger.error("attempts go on although they are lost: rollout.breaker.patience is over")
            self._share = None
            self._close()
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._next_probe = now + self._pause
            logger.warning("still no new attempts: {}; the next is tried in {:.0f} s", self._why, self._pause)
            self._change()

    def _close(self) -> None:
        self._opened = None
        self._recent.clear()
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Turn:
    """One episode's turn at the breaker. Whoever has it and leaves without a word of its probe gives the probe back."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker, self._probes = breaker, False

    @property
    def probes(self) -> bool:
        """Whether the attempt that was admitted is the breaker's probe, of which nothing has been said yet."""
        return self._probes

    async def admitted(self, stopped: asyncio.Future[str]) -> None:
        """Wait until its next attempt may begin, or it is `stopped`."""
        self._probes = await self._breaker.admitted(stopped)

    def ended(self, failure: Failure | None, *, aborted: bool = False) -> None:
        """The attempt that was admitted has ended. See Breaker."""
        probe, self._probes = self._probes, False
        self._breaker.ended(failure, probe=probe, aborted=aborted)

    async def taken(self, failure: Failure | None, stopped: asyncio.Future[str]) -> bool:
        """Its last attempt has ended: whether an outage took it, so that it is to be played again. Waits until that is
        known, or it is `stopped`."""
        return lost(failure) and await self._breaker._took(self, stopped)

    def back(self) -> None:
        """Go on after waiting for others, which the turn had left for."""
        self._breaker._under_way.add(self)

    def leave(self) -> None:
        """End the turn, however the attempt ended, or while it waits for others. Idempotent."""
        if self._probes:
            self.ended(None, aborted=True)
        self._breaker._leaves(self)
