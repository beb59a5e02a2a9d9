"""Ctrl-C that never interrupts a step halfway, and SIGTERM or SIGHUP that lets the step end first.

Inside `defer()` the first interrupt waits until the block has ended; outside it is raised at once. A second one is
raised wherever it arrives. SIGTERM, by which batch systems take a machine away, is raised as `Preempted`: within
`grace_period()` at the end of the next deferred block, at the end of the period, or when its time is over, whichever
is first. SIGHUP, by which a closing terminal ends its programs, counts as one SIGTERM; a process started to ignore it
(`nohup`) still ignores it.

Invariant: no interrupt is lost. Where Python cannot raise one (in a finalizer or a weak reference's callback) the
signal is sent again, or the next deferred block raises it.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from loguru import logger

from ajet.record.console import leave_terminal
from ajet.store.outage import interruptible

HANGUP = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()
"""The signal of a closing terminal; Windows has none."""
POLL_S = 0.1
"""Seconds between two checks whether a grace period can still complete the step."""
_RESEND_S = 0.02
"""Seconds after which a signal that a finalizer swallowed is sent again."""
_SECOND = "Interrupted again: ended at once."


class Preempted(KeyboardInterrupt):
    """Raised at SIGTERM and SIGHUP: the same command resumes the run on another machine."""


def explain_end(interrupt: KeyboardInterrupt, *, started: str = "command") -> str:
    """Return the last line of the screen after an interrupt. `started`: what the user starts to resume."""
    if interrupt.args:
        return str(interrupt)
    return f"Ended by a signal; the same {started} goes on." if isinstance(interrupt, Preempted) else "Interrupted."


class Interrupts:
    """Owns the handlers of SIGINT, SIGTERM and SIGHUP during a run (a no-op outside the main thread)."""

    def __init__(self) -> None:
        self._depth = 0
        """Number of `defer` blocks around the current point."""
        self._ends_step = True
        """False if the current blocks are polls only."""
        self._preempted_at: float | None = None
        """Monotonic time of the first SIGTERM or SIGHUP."""
        self._pending: type[KeyboardInterrupt] | None = None
        """Deferred, not raised yet."""
        self._raised: type[KeyboardInterrupt] | None = None
        """Raised outside of any block; a finalizer may have swallowed it."""
        self._earlier_hook: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
        self._is_in_hook = False
        """True while `_resend_unraisable` runs."""
        self._ctrl_c_count = 0
        self._is_resent = False
        """True if the next signal repeats one that a finalizer swallowed."""
        self._grace = 0.0
        self._may_complete: Callable[[], bool] | None = None
        self._waiting: threading.Event | None = None
        """Exists while a SIGTERM waits in a grace period; set when the wait is over."""

    @contextmanager
    def install(self) -> Iterator[Interrupts]:
        """Handle the signals within the block; restore the earlier handlers after it."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = (signal.SIGINT, signal.SIGTERM, *HANGUP)
        earlier = {
            number: signal.signal(number, self.handle_signal) for number in numbers if not ignores_hangup(number)
        }
        self._earlier_hook, sys.unraisablehook = sys.unraisablehook, self._resend_unraisable
        try:
            with interruptible(self._raise_pending):
                yield self
        finally:
            sys.unraisablehook = self._earlier_hook
            for number, handler in earlier.items():
                signal.signal(number, handler)

    @contextmanager
    def defer(self, *, ends_step: bool = True) -> Iterator[None]:
        """Defer a first interrupt until the outermost block has ended.

        Args:
            ends_step: False if the block is one poll of many; a SIGTERM in a grace period then waits for further ones.

        Raises:
            KeyboardInterrupt: Before the block, for one that a finalizer swallowed.
        """
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise self._make_interrupt(raised)
        outer, self._ends_step = self._ends_step, ends_step or (self._depth > 0 and self._ends_step)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._ends_step = outer
        if self._depth == 0 and self._pending is not None and (ends_step or self._waiting is None):
            raise self._take_pending()

    @contextmanager
    def grace_period(self, seconds: float, may_complete: Callable[[], bool] | None = None) -> Iterator[None]:
        """Let a first SIGTERM wait for the next deferred block or the end of this one, at most `seconds`.

        Args:
            may_complete: The wait ends once this is False: the step cannot complete any more. None waits.
        """
        self._grace, self._may_complete = seconds, may_complete
        try:
            yield
        finally:
            self._grace, self._may_complete, has_waited = 0.0, None, self._end_wait()
        if has_waited and self._pending is not None:
            raise self._take_pending()

    def remaining_grace(self, seconds: float) -> float | None:
        """Return what is left of `seconds` since the first SIGTERM; None if there was none."""
        return None if self._preempted_at is None else max(0.0, self._preempted_at + seconds - time.monotonic())

    def forget_raised(self) -> None:
        """Forget an interrupt that the caller has caught, so that later blocks do not raise it again."""
        self._raised = None

    def _raise_pending(self) -> None:
        """Raise a deferred interrupt before its block ends: the block waits for a store that may never answer."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._pending is not None and self._waiting is None:
            raise self._take_pending()

    def _take_pending(self) -> KeyboardInterrupt:
        pending, self._pending = self._pending, None
        self._end_wait()
        return self._make_interrupt(pending or KeyboardInterrupt)

    def _make_interrupt(self, kind: type[KeyboardInterrupt]) -> KeyboardInterrupt:
        return kind(_SECOND) if self._ctrl_c_count > 1 and kind is KeyboardInterrupt else kind()

    def _end_wait(self) -> bool:
        """End the wait of a grace period; return whether there was one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set()
        return waiting is not None

    def _resend_unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Send a signal again whose interrupt was raised in a finalizer, where Python drops it."""
        if lost.exc_type is not KeyboardInterrupt and lost.exc_type is not Preempted:
            self._earlier_hook(lost)
            return
        self._is_in_hook = True
        self._raised = lost.exc_type
        try:
            threading.Thread(target=self._resend_signal, daemon=True).start()
        finally:
            self._is_in_hook = False  # the last statement: no signal is handled between it and the return

    def _resend_signal(self) -> None:
        """Send the signal again once the hook has returned: Python drops what is raised within the hook."""
        time.sleep(_RESEND_S)
        while self._is_in_hook:  # starting a thread may take long on a busy machine
            time.sleep(_RESEND_S)
        if self._raised is not None:  # else a block has raised it
            self._is_resent = True
            _send_to_main(signal.SIGTERM if self._raised is Preempted else signal.SIGINT)

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        kind = KeyboardInterrupt if number == signal.SIGINT else Preempted
        if kind is KeyboardInterrupt and not self._is_resent:
            self._ctrl_c_count += 1
        self._is_resent = False
        if number in HANGUP:
            leave_terminal()
            if self._preempted_at is not None:  # a shell sends it to its jobs once more
                return
            _log_warning("the terminal was closed: the run ends, and keeps what is done")
        if kind is Preempted and self._preempted_at is None:
            self._preempted_at = time.monotonic()
        if self._pending is None:
            if self._depth and self._ends_step:
                self._pending = kind
                return
            if kind is Preempted and self._grace and (self._may_complete is None or self._may_complete()):
                self._pending, self._waiting = kind, threading.Event()
                _log_warning(f"asked to end: the step is kept if it ends within {self._grace:g} s")
                args = (self._waiting, self._grace, self._may_complete)
                threading.Thread(target=_count_down, args=args, daemon=True).start()
                return
            if self._depth:
                self._pending = kind
                return
        elif self._waiting and self._depth and kind is Preempted:
            if not self._ends_step:
                self._end_wait()  # raised when the poll ends
            return  # the time is over within a block that ends the step: it is complete in a moment
        self._raised = kind if not self._depth else None
        self._pending = None
        self._end_wait()
        raise self._make_interrupt(kind)


def ignores_hangup(number: int) -> bool:
    """True for SIGHUP in a process that was started to ignore it, as by `nohup`."""
    return number in HANGUP and signal.getsignal(number) is signal.SIG_IGN


def end_on_hangup() -> None:
    """Handle SIGHUP by the handler of SIGTERM, unless SIGHUP is ignored."""
    for number in HANGUP:
        if not ignores_hangup(number):
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))


def _log_warning(text: str) -> None:
    """Log from a signal handler: the main thread may be inside the logger, whose lock is not re-entrant."""
    threading.Thread(target=lambda: logger.warning("{}", text), daemon=True).start()


def _count_down(over: threading.Event, seconds: float, may_complete: Callable[[], bool] | None) -> None:
    """Send SIGTERM again when the time is over, or the step cannot complete any more."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and (may_complete is None or may_complete()):
        if over.wait(POLL_S):
            return
    if not over.is_set():
        _send_to_main(signal.SIGTERM)


def _send_to_main(number: signal.Signals) -> None:
    main = threading.main_thread()
    if main.ident is not None and main.is_alive():
        signal.pthread_kill(main.ident, number)
