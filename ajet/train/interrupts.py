"""Handle Ctrl-C without interrupting a step halfway, and SIGTERM or SIGHUP after the present step.

Inside `defer()` the first interrupt waits for the end of the block. Outside a block it is raised at once. A second
interrupt is raised immediately everywhere. Batch systems send SIGTERM before taking a machine away. SIGTERM is raised
as `Preempted`. Within `grace_period()` it is raised at the end of the next deferred block, at the end of the period, or
at the time limit, whichever comes first. SIGHUP, sent by a closing terminal, counts as a single SIGTERM; a process
started to ignore SIGHUP (`nohup`) still ignores the signal.

Invariant: no interrupt is lost. If Python cannot raise an interrupt (in a finalizer or a weak reference's callback),
the signal is sent a second time, or the next deferred block raises the interrupt.
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
from ajet.store.outage import INTERRUPT_RAISER

HANGUP = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()
"""The signal of a closing terminal. Windows has no such signal."""
POLL_S = 0.1
"""Seconds between two checks whether a step can still complete within a grace period."""
_RESEND_S = 0.02
"""Seconds before a signal swallowed by a finalizer is resent."""
_SECOND = "Interrupted again: ajet ended at once."


class Preempted(KeyboardInterrupt):
    """Raised on SIGTERM and SIGHUP: the same command resumes the run on another machine."""


def explain_end(interrupt: KeyboardInterrupt, *, started: str = "command") -> str:
    """Return the last line of the screen after an interrupt.

    Args:
        started: what the user ran, for the advice to run it again: "command" or "program".
    """
    if interrupt.args:
        return str(interrupt)
    return (
        f"Ended by a signal; to continue, run the same {started} again."
        if isinstance(interrupt, Preempted)
        else "Interrupted."
    )


class Interrupts:
    """Own the handlers of SIGINT, SIGTERM and SIGHUP during a run (a no-op outside the main thread)."""

    def __init__(self) -> None:
        self._defer_depth = 0
        """Number of active `defer` blocks around the current point."""
        self._ends_step = True
        """False if the current blocks are polls only."""
        self._preempted_at: float | None = None
        """Monotonic time of the first SIGTERM or SIGHUP."""
        self._pending: type[KeyboardInterrupt] | None = None
        """The deferred interrupt, to be raised later."""
        self._raised_interrupt: type[KeyboardInterrupt] | None = None
        """An interrupt raised outside of any block. A finalizer may have swallowed the exception."""
        self._earlier_hook: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
        self._is_in_hook = False
        """True while the hook `_resend_unraisable` is running."""
        self._ctrl_c_count = 0
        self._is_resent = False
        """True if the next signal repeats a signal swallowed by a finalizer."""
        self._grace_s = 0.0
        self._may_complete: Callable[[], bool] | None = None
        self._grace_wait: threading.Event | None = None
        """Exists while a SIGTERM waits in a grace period. Set when the wait is over."""

    @contextmanager
    def install(self) -> Iterator[Interrupts]:
        """Handle the signals within the block, and restore the earlier handlers afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = (signal.SIGINT, signal.SIGTERM, *HANGUP)
        earlier_handlers = {
            number: signal.signal(number, self.handle_signal) for number in numbers if not ignores_hangup(number)
        }
        self._earlier_hook, sys.unraisablehook = sys.unraisablehook, self._resend_unraisable
        token = INTERRUPT_RAISER.set(self._raise_pending)
        try:
            yield self
        finally:
            INTERRUPT_RAISER.reset(token)
            sys.unraisablehook = self._earlier_hook
            for number, handler in earlier_handlers.items():
                signal.signal(number, handler)

    @contextmanager
    def defer(self, *, ends_step: bool = True) -> Iterator[None]:
        """Defer a first interrupt until the outermost `defer` block has ended.

        Args:
            ends_step: True if the step is complete after the block. False if the block is a single poll of a wait: a
                SIGTERM in a grace period then waits for further polls.

        Raises:
            KeyboardInterrupt: Before the block, for an interrupt swallowed by a finalizer.
        """
        if self._raised_interrupt is not None:
            raised, self._raised_interrupt = self._raised_interrupt, None
            raise self._make_interrupt(raised)
        # An inner block must not weaken an outer one that ends the step. `outer` restores the value afterwards.
        outer, self._ends_step = self._ends_step, ends_step or (self._defer_depth > 0 and self._ends_step)
        self._defer_depth += 1
        try:
            yield
        finally:
            self._defer_depth -= 1
            self._ends_step = outer
        if self._defer_depth == 0 and self._pending is not None and (ends_step or self._grace_wait is None):
            raise self._take_pending()

    @contextmanager
    def grace_period(self, seconds: float, may_complete: Callable[[], bool] | None = None) -> Iterator[None]:
        """Let a first SIGTERM wait for the next deferred block or the end of the `with` block, at most `seconds`.

        Args:
            may_complete: Ends the wait by returning False if the step cannot complete any more. None: always wait.
        """
        self._grace_s, self._may_complete = seconds, may_complete
        try:
            yield
        finally:
            self._grace_s, self._may_complete, has_waited = 0.0, None, self._end_wait()
        if has_waited and self._pending is not None:
            raise self._take_pending()

    def remaining_grace(self, seconds: float) -> float | None:
        """Return the rest of `seconds` since the first SIGTERM, or None without SIGTERM."""
        return None if self._preempted_at is None else max(0.0, self._preempted_at + seconds - time.monotonic())

    def forget_raised(self) -> None:
        """Clear an interrupt caught by the caller, so that later blocks do not raise it a second time."""
        self._raised_interrupt = None

    def _raise_pending(self) -> None:
        """Raise a deferred interrupt before its block ends, because the block waits for an unresponsive store."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._pending is not None and self._grace_wait is None:
            raise self._take_pending()

    def _take_pending(self) -> KeyboardInterrupt:
        """Return the deferred interrupt and clear it, so that it is raised once."""
        pending, self._pending = self._pending, None
        self._end_wait()
        return self._make_interrupt(pending or KeyboardInterrupt)

    def _make_interrupt(self, kind: type[KeyboardInterrupt]) -> KeyboardInterrupt:
        """Return an interrupt to raise. After a second Ctrl-C its message says that ajet ended at once."""
        return kind(_SECOND) if self._ctrl_c_count > 1 and kind is KeyboardInterrupt else kind()

    def _end_wait(self) -> bool:
        """End the wait of a grace period. Return True if there was one."""
        waiting, self._grace_wait = self._grace_wait, None
        if waiting is not None:
            waiting.set()
        return waiting is not None

    def _resend_unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Resend a signal after its interrupt was raised in a finalizer, where Python drops exceptions."""
        if lost.exc_type is not KeyboardInterrupt and lost.exc_type is not Preempted:
            self._earlier_hook(lost)
            return
        self._is_in_hook = True
        self._raised_interrupt = lost.exc_type
        try:
            threading.Thread(target=self._resend_signal, daemon=True).start()
        finally:
            self._is_in_hook = False  # keep last: no signal is handled between this line and the return

    def _resend_signal(self) -> None:
        """Resend the signal after the hook has returned, because Python drops exceptions raised within the hook."""
        time.sleep(_RESEND_S)
        while self._is_in_hook:  # starting a thread may take long on a busy machine
            time.sleep(_RESEND_S)
        if self._raised_interrupt is not None:  # otherwise a block has raised it already
            self._is_resent = True
            _send_to_main(signal.SIGTERM if self._raised_interrupt is Preempted else signal.SIGINT)

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT, SIGTERM or SIGHUP.

        A first interrupt waits for the end of a `defer` block, and a first SIGTERM also within a grace period. Any
        other interrupt is raised here.
        """
        kind = KeyboardInterrupt if number == signal.SIGINT else Preempted
        if kind is KeyboardInterrupt and not self._is_resent:
            self._ctrl_c_count += 1
        self._is_resent = False
        if number in HANGUP:
            leave_terminal()
            if self._preempted_at is not None:  # a shell also sends SIGHUP to its jobs
                return
            _log_warning("the terminal was closed: the run saves its progress and ends")
        if kind is Preempted and self._preempted_at is None:
            self._preempted_at = time.monotonic()
        if self._pending is None:
            # Within a block that ends the step, the first interrupt always waits for the block.
            if self._defer_depth and self._ends_step:
                self._pending = kind
                return
            if kind is Preempted and self._grace_s and (self._may_complete is None or self._may_complete()):
                self._pending, self._grace_wait = kind, threading.Event()
                _log_warning(f"SIGTERM: the run saves the current step if the step ends within {self._grace_s:g} s")
                args = (self._grace_wait, self._grace_s, self._may_complete)
                threading.Thread(target=_count_down, args=args, daemon=True).start()
                return
            if self._defer_depth:
                self._pending = kind
                return
        elif self._grace_wait and self._defer_depth and kind is Preempted:
            if not self._ends_step:
                self._end_wait()  # raised when the poll ends
            return  # the time limit passed within the block that completes the step: let the block end
        # A second interrupt, or one outside of any block, is raised here. Outside, `_raised_interrupt` remembers it,
        # because Python drops an exception raised within a finalizer.
        self._raised_interrupt = kind if not self._defer_depth else None
        self._pending = None
        self._end_wait()
        raise self._make_interrupt(kind)


def ignores_hangup(number: int) -> bool:
    """Return True for SIGHUP in a process started to ignore the signal, as with `nohup`."""
    return number in HANGUP and signal.getsignal(number) is signal.SIG_IGN


def end_on_hangup() -> None:
    """Handle SIGHUP with the handler of SIGTERM, unless SIGHUP is ignored."""
    for number in HANGUP:
        if not ignores_hangup(number):
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))


def _log_warning(text: str) -> None:
    """Log from a signal handler. The main thread may hold the logger's lock, and the lock is not re-entrant."""
    threading.Thread(target=lambda: logger.warning("{}", text), daemon=True).start()


def _count_down(over: threading.Event, seconds: float, may_complete: Callable[[], bool] | None) -> None:
    """Resend SIGTERM at the time limit, or as soon as the step cannot complete any more."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (may_complete is None or may_complete()):
        if over.wait(POLL_S):
            return
    if not over.is_set():
        _send_to_main(signal.SIGTERM)


def _send_to_main(number: signal.Signals) -> None:
    """Send a signal to the main thread, which alone runs signal handlers."""
    main = threading.main_thread()
    if main.ident is not None and main.is_alive():
        signal.pthread_kill(main.ident, number)
