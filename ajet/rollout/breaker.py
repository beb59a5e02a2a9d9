"""Circuit breaker: pauses new attempts during an outage of anything outside of the model.

Invariants: the breaker opens when more than `share` of the last `window` ended attempts were lost to the engine, a
tool, the environment, the sandbox or the judge by a retryable failure. While the breaker is open, only one probe at a
time starts, at growing intervals. The first probe without a loss closes the breaker. A lost attempt counts as failed
only when the loss is known to have no outage as cause. Otherwise the attempt is played again, because training on the
survivors alone would bias a group. After `patience` the breaker stays closed, and lost attempts are failed episodes.
All methods run on one loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from loguru import logger

from ajet.record.console import counted
from ajet.rollout.runtime import wait_first
from ajet.schema.episode import Failure

if TYPE_CHECKING:
    from ajet.config.schema.rollout import BreakerConfig

OUTSIDE_BOUNDARIES = frozenset({"engine", "tool", "environment", "sandbox", "judge"})
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before the first probe. The pause doubles with each further probe, up to LONGEST_PAUSE."""


def is_lost(failure: Failure | None) -> bool:
    """True if an attempt ended by a retryable failure outside of the model, as during an outage."""
    return failure is not None and failure.retryable and failure.boundary in OUTSIDE_BOUNDARIES


class Breaker:
    """Pauses new attempts of one rollout or server during an outage.

    A probe is a single attempt that starts during the pause, to test whether the outage is over. A doubt is a lost
    attempt whose cause is not known yet.
    """

    def __init__(self, settings: BreakerConfig, *, on: bool = True) -> None:
        """Start closed, with no attempts counted.

        Args:
            settings: `rollout.breaker`: the share of lost attempts that opens the breaker, the window and the patience.
            on: False: the breaker never opens.
        """
        self._failure_share = settings.share
        self._window_size = settings.window
        self._patience_s = settings.patience
        if not on:
            self._failure_share = None
        self.recent: deque[str] = deque(maxlen=self._window_size)
        """The boundaries at which recent attempts were lost, or "" for attempts not lost."""
        self._under_way: set[BreakerTurn] = set()
        """Episodes that run or wait for admission."""
        self._ended_count = 0
        self.doubtful: deque[tuple[asyncio.Future[bool], int]] = deque()
        """For each undecided lost attempt, in order: the future answer (True if an outage caused the loss), and the
        number of attempts ended by then.
        """
        self._opened_at: float | None = None
        self._pause_s = FIRST_PAUSE
        self.next_probe = 0.0
        self._is_probing = False
        self._state_changed = asyncio.Event()
        self._opening_reason = ""

    @property
    def is_open(self) -> bool:
        """True during an outage: only a probe may begin then."""
        return self._opened_at is not None

    @property
    def why(self) -> str:
        """The reason why the breaker opened last, as text for the log."""
        return self._opening_reason

    def open_turn(self) -> BreakerTurn:
        """Return a turn for an episode about to be played. An episode may have to wait for admission."""
        turn = BreakerTurn(self)
        self._under_way.add(turn)
        return turn

    def may_probe(self) -> bool:
        """Return True and reserve the probe if no other probe runs and the pause is over."""
        if self._is_probing or time.monotonic() < self.next_probe:
            return False
        self._is_probing = True
        return True

    async def wait_admitted(self, stop_signal: asyncio.Future[str]) -> bool:
        """Wait until an attempt may start, or until `stop_signal`. Return True if the attempt is the probe."""
        while self.is_open and not stop_signal.done():
            if self.may_probe():
                return True
            wait = asyncio.ensure_future(self._state_changed.wait())
            remaining = None if self._is_probing else max(0.0, self.next_probe - time.monotonic())
            await wait_first(wait, stop_signal, timeout=remaining)
            wait.cancel()
        return False

    def report_end(self, failure: Failure | None, *, probe: bool = False, aborted: bool = False) -> None:
        """Count the end of an attempt. Aborted attempts are not counted.

        A doubt (a lost attempt of unknown cause) is decided as "no outage" once `window` further attempts have ended
        while the breaker stayed closed.

        Args:
            failure: The attempt's failure. None if the attempt succeeded.
            probe: True if the attempt was the probe.
        """
        if aborted:
            if probe:
                self._is_probing = False
                self._notify_waiting()
            return
        was_lost = is_lost(failure)
        self._ended_count += 1
        if probe:
            self._take_probe(was_lost)
        elif not self.is_open:
            self.recent.append(failure.boundary if was_lost and failure is not None else "")
            self.open_if_many_lost()
        while self.doubtful and self._ended_count - self.doubtful[0][1] >= self._window_size:
            doubt, _ = self.doubtful.popleft()
            if not doubt.done():
                doubt.set_result(False)

    async def _find_outage(self, turn: BreakerTurn, stop_signal: asyncio.Future[str]) -> bool:
        """Return True if an outage caused the loss of the turn's attempt. May wait for the ends of other attempts."""
        if self._failure_share is None or stop_signal.done():
            return False
        if self.is_open:
            return True
        if len(self.recent) + len(self._under_way) < self._window_size:  # too few to decide
            return False
        doubt: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.doubtful.append((doubt, self._ended_count))
        # A waiting episode produces no end that could decide the doubt. When all episodes wait here, the last `leave`
        # decides all doubts as "no outage".
        turn.leave()
        await wait_first(doubt, stop_signal)
        self._under_way.add(turn)
        return doubt.done() and doubt.result()

    def _discard_turn(self, turn: BreakerTurn) -> None:
        """Stop counting an episode as under way. If none is left, no further end can show an outage: decide all doubts
        as no outage.
        """
        self._under_way.discard(turn)
        if not self._under_way:
            self._settle_doubts(False)

    def _settle_doubts(self, outage: bool) -> None:
        """Decide for all lost attempts of unknown cause whether an outage was the cause."""
        for doubt, _ in self.doubtful:
            if not doubt.done():
                doubt.set_result(outage)
        self.doubtful.clear()

    def open_if_many_lost(self) -> None:
        """Open the breaker if more than `share` of the last `window` ended attempts were lost."""
        if self._failure_share is None or len(self.recent) < self._window_size:
            return
        boundaries = Counter(boundary for boundary in self.recent if boundary)
        if boundaries.total() <= self._failure_share * self._window_size:
            return
        self._opened_at = time.monotonic()
        self._pause_s = FIRST_PAUSE
        self.next_probe = self._opened_at + FIRST_PAUSE
        self._is_probing = False
        self._opening_reason = (
            f"{boundaries.total()} of the last {counted(self._window_size, 'attempt')} failed because of "
            + ", ".join(f"the {boundary} ({count})" for boundary, count in boundaries.most_common())
        )
        logger.warning(
            "ajet starts no new attempts: {}. It keeps starting single test attempts until one succeeds "
            "(rollout.breaker)",
            self._opening_reason,
        )
        self._settle_doubts(True)
        self._notify_waiting()

    def _take_probe(self, was_lost: bool) -> None:
        """Close the breaker if the probe was not lost or `patience` is over. Otherwise double the pause."""
        self._is_probing = False
        if self._opened_at is None:
            return
        now = time.monotonic()
        if not was_lost:
            logger.warning("ajet starts attempts again after {:.0f} s: a test attempt succeeded", now - self._opened_at)
            self.close_breaker()
        elif now - self._opened_at > self._patience_s:
            logger.error(
                "attempts kept failing for rollout.breaker.patience seconds; ajet waits no longer, and starts new "
                "attempts whether or not they fail. Look for the reason in the failures above"
            )
            # From now on the breaker never opens again: lost attempts are failed episodes.
            self._failure_share = None
            self.close_breaker()
        else:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE)
            self.next_probe = now + self._pause_s
            logger.warning(
                "ajet still starts no new attempts: {}; the next test attempt starts in {:.0f} s",
                self._opening_reason,
                self._pause_s,
            )
            self._notify_waiting()

    def close_breaker(self) -> None:
        """Let attempts start again, forget the counted losses, and wake the waiting episodes."""
        self._opened_at = None
        self.recent.clear()
        self._notify_waiting()

    def _notify_waiting(self) -> None:
        """Wake every episode that waits for a change of the breaker's state."""
        # Each change has its own event, so all present waiters wake once and no waiter has to clear a flag.
        self._state_changed.set()
        self._state_changed = asyncio.Event()


class BreakerTurn:
    """The turn of one episode at the breaker, over all attempts of the episode.

    If the turn is left before a probe's end is reported, another attempt may become the probe.
    """

    def __init__(self, breaker: Breaker) -> None:
        self._breaker, self._is_probe = breaker, False

    @property
    def is_probe(self) -> bool:
        """True if the admitted attempt is the breaker's probe and the attempt's end is not reported yet."""
        return self._is_probe

    async def wait_admitted(self, stop_signal: asyncio.Future[str]) -> None:
        """Wait until the episode's next attempt may start, or until `stop_signal`."""
        self._is_probe = await self._breaker.wait_admitted(stop_signal)

    def report_end(self, failure: Failure | None, *, aborted: bool = False) -> None:
        """Report the end of the admitted attempt."""
        probe, self._is_probe = self._is_probe, False
        self._breaker.report_end(failure, probe=probe, aborted=aborted)

    async def was_outage(self, failure: Failure | None, stop_signal: asyncio.Future[str]) -> bool:
        """True if an outage caused the loss of the last attempt. The caller then plays the attempt again.

        Waits until the cause is known, or until `stop_signal`.
        """
        return is_lost(failure) and await self._breaker._find_outage(self, stop_signal)

    def rejoin(self) -> None:
        """Count the episode as under way again, after its attempt waited to be compared with other attempts."""
        self._breaker._under_way.add(self)

    def leave(self) -> None:
        """Stop counting the episode as under way: it has ended, or waits for other attempts. Idempotent."""
        if self._is_probe:
            self.report_end(None, aborted=True)
        self._breaker._discard_turn(self)
