"""Ctrl-C that never tears a step apart, and SIGTERM or SIGHUP that lets it end.

Invariant: inside `held()` the first interrupt is kept until the block has ended; outside it is raised at once. A
second interrupt is raised wherever it arrives. None is lost: where Python cannot pass it on (in a finalizer, or what a
weak reference calls) it is sent once more, or the next block raises it. SIGTERM, by which batch systems
take a machine away, is raised as `Preempted`: inside `patient()` when what is being played has been held, or after the
block, or when its time is over, whichever is first. Looks at what others play (`held(whole=False)`) end no wait.
SIGHUP, by which a terminal that closes ends its programs, counts as SIGTERM, once; ignored at the start (`nohup`), it
stays ignored.
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
"""The signal of a terminal that closes; Windows has none."""
GLANCE_S = 0.1
"""Between two looks whether it is still worth waiting."""
_AGAIN_S = 0.02
"""After which an interrupt that a finalizer swallowed is sent once more: the finalizer is over by then."""


_AGAIN = "Interrupted again: ended at once."


class Preempted(KeyboardInterrupt):
    """The machine is taken away: the run is to be started again elsewhere."""


def explain_end(interrupt: KeyboardInterrupt, *, started: str = "command") -> str:
    """Return the last line of the screen after an interrupt. `started`: what the person starts again."""
    if interrupt.args:
        return str(interrupt)
    return f"Ended by a signal; the same {started} goes on." if isinstance(interrupt, Preempted) else "Interrupted."


class Interrupts:
    """Owns the handlers of SIGINT, SIGTERM and SIGHUP while a run goes on (a no-op outside the main thread)."""

    def __init__(self) -> None:
        self._held = 0
        """Number of `held` blocks around the present point."""
        self._whole = True
        self._asked: float | None = None
        """When the first SIGTERM or SIGHUP came."""
        self._pending: type[KeyboardInterrupt] | None = None
        self._raised: type[KeyboardInterrupt] | None = None
        self._earlier_hook: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
        self._is_in_hook = False
        """True while `_unraisable` runs."""
        self._again = False
        """A second Ctrl-C came."""
        self._interrupted = False
        self._sent_again = False
        """The next signal is one that a finalizer swallowed, and no new one."""
        self._patience = 0.0
        self._worth: Callable[[], bool] | None = None
        self._waiting: threading.Event | None = None
        """While a SIGTERM waits; set when it no longer does."""

    @contextmanager
    def installed(self) -> Iterator[Interrupts]:
        """Handle the signals within the block, restore the earlier handlers after it."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        numbers = (signal.SIGINT, signal.SIGTERM, *HANGUP)
        earlier = {number: signal.signal(number, self._handle) for number in numbers if not ignores_hangup(number)}
        self._earlier_hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        try:
            with interruptible(self._raise_kept):
                yield self
        finally:
            sys.unraisablehook = self._earlier_hook
            for number, handler in earlier.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self, *, whole: bool = True) -> Iterator[None]:
        """Within the block a first interrupt waits; it is raised when the outermost block ends.

        Args:
            whole: False if the block is one look of many, after which a SIGTERM that waits in `patient` waits on.

        Raises:
            KeyboardInterrupt: before the block, for one that was raised and that nobody has heard.
        """
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise self._made(raised)
        outer_whole, self._whole = self._whole, whole or (self._held > 0 and self._whole)
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self._whole = outer_whole
        if self._held == 0 and self._pending is not None and (whole or self._waiting is None):
            raise self._taken()

    @contextmanager
    def patient(self, seconds: float, worth: Callable[[], bool] | None = None) -> Iterator[None]:
        """Within the block a first SIGTERM waits for the end of the next `held`, or of the block, at most so long, and
        only while `worth` says that something may come of it (None: always)."""
        self._patience, self._worth = seconds, worth
        try:
            yield
        finally:
            self._patience, self._worth, waited = 0.0, None, self._over()
        if waited and self._pending is not None:
            raise self._taken()

    def left(self, seconds: float) -> float | None:
        """The seconds left of so many after the first SIGTERM; None: there was none."""
        return None if self._asked is None else max(0.0, self._asked + seconds - time.monotonic())

    def heard(self) -> None:
        """For who caught an interrupt and goes on to further blocks."""
        self._raised = None

    def _raise_kept(self) -> None:
        """Raise what `held` keeps, before its block ends: the block waits for a store that may never come back."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and self._pending is not None and self._waiting is None:
            raise self._taken()

    def _taken(self) -> KeyboardInterrupt:
        pending, self._pending = self._pending, None
        self._over()
        return self._made(pending or KeyboardInterrupt)

    def _made(self, kind: type[KeyboardInterrupt]) -> KeyboardInterrupt:
        return kind(_AGAIN) if self._again and kind is KeyboardInterrupt else kind()

    def _over(self) -> bool:
        """End the wait; whether there was one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set()
        return waiting is not None

    def _unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """An interrupt that came within a finalizer, which Python cannot pass on: send it once more."""
        if lost.exc_type is not KeyboardInterrupt and lost.exc_type is not Preempted:
            self._earlier_hook(lost)
            return
        self._is_in_hook = True
        self._raised = lost.exc_type
        try:
            threading.Thread(target=self._send_again, daemon=True).start()
        finally:
            self._is_in_hook = False  # the last statement: no signal is handled between it and the return

    def _send_again(self) -> None:
        """Send the signal again once the hook has returned: Python drops what is raised within the hook."""
        time.sleep(_AGAIN_S)
        while self._is_in_hook:  # starting a thread may take long on a busy machine
            time.sleep(_AGAIN_S)
        if self._raised is not None:  # else a block has raised it
            self._sent_again = True
            _send_to_main(signal.SIGTERM if self._raised is Preempted else signal.SIGINT)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        kind = KeyboardInterrupt if number == signal.SIGINT else Preempted
        if kind is KeyboardInterrupt and not self._sent_again:
            self._again, self._interrupted = self._interrupted, True
        self._sent_again = False
        if number in HANGUP:
            leave_terminal()
            if self._asked is not None:  # a shell sends it to its jobs once more
                return
            _warn("the terminal was closed: the run ends, and keeps what is done")
        if kind is Preempted and self._asked is None:
            self._asked = time.monotonic()
        if self._pending is None:
            if self._held and self._whole:
                self._pending = kind
                return
            if kind is Preempted and self._patience and (self._worth is None or self._worth()):
                self._pending, self._waiting = kind, threading.Event()
                _warn(f"asked to end: the step is kept if it ends within {self._patience:g} s")
                about = (self._waiting, self._patience, self._worth)
                threading.Thread(target=_count_down, args=about, daemon=True).start()
                return
            if self._held:
                self._pending = kind
                return
        elif self._waiting and self._held and kind is Preempted:
            if not self._whole:
                self._over()  # raised when the look ends
            return  # its time is over while the step is being held: the step is whole in a moment
        self._raised = kind if not self._held else None
        self._pending = None
        self._over()
        raise self._made(kind)


def ignores_hangup(number: int) -> bool:
    """True for SIGHUP in a process that was started to ignore it, as by `nohup`."""
    return number in HANGUP and signal.getsignal(number) is signal.SIG_IGN


def end_on_hangup() -> None:
    """Handle SIGHUP as SIGTERM, whatever handles that; not where it is ignored."""
    for number in HANGUP:
        if not ignores_hangup(number):
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGTERM))


def _warn(text: str) -> None:
    """Log from a signal handler: the main thread may be within the logger, which is not to be entered twice."""
    threading.Thread(target=lambda: logger.warning("{}", text), daemon=True).start()


def _count_down(over: threading.Event, seconds: float, worth: Callable[[], bool] | None) -> None:
    """Send the signal again when the time is over, or nothing more can come."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and (worth is None or worth()):
        if over.wait(GLANCE_S):
            return
    if not over.is_set():
        _send_to_main(signal.SIGTERM)


def _send_to_main(number: signal.Signals) -> None:
    main = threading.main_thread()
    if main.ident is not None and main.is_alive():
        signal.pthread_kill(main.ident, number)
