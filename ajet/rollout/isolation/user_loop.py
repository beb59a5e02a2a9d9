"""UserLoop: an event loop in a daemon thread for user code, with a watchdog that names what blocks it.

Invariant: a task that keeps the loop for over a second is named in the log with the file and line it stands at; a
loop that is merely busy with many tasks is not blamed.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from loguru import logger

from ajet.rollout.isolation.thread import DaemonThreads, find_user_frame, format_position, locate_code

T = TypeVar("T")
PATIENCE = 1.0
"""Seconds after which one task that keeps the loop is named."""
GLANCE = 0.25
"""Seconds between two looks of the watchdog."""


class UserLoop:
    """`submit` coroutines from any thread."""

    def __init__(self, name: str, what: str) -> None:
        """`name` of the thread; `what` runs here, for the log: "execute", "a judge"."""
        self._what = what
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(DaemonThreads())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closing = threading.Event()
        self._keeper: tuple[asyncio.Task[Any], float] | None = None
        self._thread.start()
        threading.Thread(target=self._watch, name=f"{name}-watchdog", daemon=True).start()

    @property
    def blocked(self) -> bool:
        """True while one task has kept the loop longer than a task should."""
        keeper = self._keeper
        return keeper is not None and time.monotonic() - keeper[1] >= PATIENCE

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it here. Cancelling the future cancels the task."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def has(self, task: asyncio.Task[Any]) -> bool:
        """Whether it is one of this loop's."""
        return task.get_loop() is self._loop

    def stands(self, task: asyncio.Task[Any]) -> str:
        """Where the person's code stands in one of its tasks: where the loop's thread does, for the one that has it."""
        has_it = asyncio.current_task(self._loop) is task
        return locate_code(self._thread.ident if has_it else None, task)

    def close(self) -> None:
        """Cancel everything and end the thread and its loop, if it listens. Idempotent; does not wait."""
        if not self._closing.is_set():
            self._closing.set()
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._cancel_all)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._closing.is_set():
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # raised by a task that user code made
                self._loop.run_forever()
        self._loop.close()

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.call_later(0.1, self._loop.stop)

    def _watch(self) -> None:
        """Watch for a task that blocks: one seen at every look, with no beat of the loop between."""
        sent = heard = 0
        named: asyncio.Task[Any] | None = None

        def beat() -> None:
            nonlocal heard
            heard = sent

        while not self._closing.wait(GLANCE):
            running = asyncio.current_task(self._loop)
            if heard == sent:
                self._keeper = None
                sent += 1
                with contextlib.suppress(RuntimeError):  # it has just ended
                    self._loop.call_soon_threadsafe(beat)
            elif running is None:
                self._keeper = None
            elif self._keeper is None or self._keeper[0] is not running:
                self._keeper = (running, time.monotonic())
            elif self.blocked and named is not running:
                named = running
                self._name_it()

    def _name_it(self) -> None:
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return
        own = find_user_frame(frame) or frame
        inner = f" (in {format_position(frame)})" if own is not frame else ""
        logger.warning(
            "{} blocks the shared loop for over a second at {}{}: all other episodes wait; "
            "await instead, or set rollout.isolation=thread",
            self._what,
            format_position(own),
            inner,
        )
