"""Resources: what an attempt opened for itself (an environment, a tool session, a sandbox, files), closed with it.

Invariant: everything that was entered is left once, the last one first, whatever ended the attempt: its return, an
exception, a cancellation, its time limit, the end of its process or of the process that started it; a process forked
from that one leaves nothing. Nothing is entered for an attempt that is over. What fails while it is opened names its
boundary; what fails while it is closed is a warning, for the episode is played. That code ran unconfined
(`environment.sandbox: none`), the record of each such episode says; a launch warns of it before it begins.

Who closes: the task or thread that ran the attempt; where that hangs, whoever stopped it, from a thread beside (what is
asynchronous then gets an event loop of its own); in a process of its own, that process, before it ends.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from loguru import logger

from ajet.config.references import resolve_class
from ajet.schema.errors import AjetError, BoundaryError, EnvironmentFailure, SandboxFailure, ToolFailure, UserError
from ajet.schema.sandbox import Sandbox, SandboxFactory
from ajet.schema.tool_use import ToolUse, compute_digest

T = TypeVar("T")
Outside = Literal["environment", "tool"]
PATIENCE_S = 10.0
"""How long closing may take where the attempt itself cannot do it any more."""
_FAILURES: dict[str, type[BoundaryError]] = {"environment": EnvironmentFailure, "tool": ToolFailure}


class AttemptOverError(AjetError):
    """The attempt has ended: it may open nothing."""


@contextmanager
def blame_boundary(boundary: Outside) -> Iterator[None]:
    """What is raised within is a failure of that boundary, not of the agent: it is retried and never trained on."""
    try:
        yield
    except BoundaryError:
        raise
    except Exception as problem:
        raise _FAILURES[boundary](f"{type(problem).__name__}: {problem}") from problem


class Resources:
    """What one attempt opened and must close. Methods are named as contextlib's ExitStack names them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._exits: list[tuple[str, Any]] | None = []
        """(what it is, how it is left), as entered; None: the attempt is over."""

    def enter_context(self, manager: AbstractContextManager[T], *, boundary: Outside = "environment") -> T:
        """Enter it now and leave it when the attempt ends. Raises EnvironmentFailure or ToolFailure, by `boundary`,
        for what it raises; AttemptOverError."""
        self._require_open()
        with blame_boundary(boundary):
            entered = manager.__enter__()
        self._push_exit(type(manager).__name__, lambda: manager.__exit__(None, None, None))
        return entered

    async def enter_async_context(
        self, manager: AbstractAsyncContextManager[T], *, boundary: Outside = "environment"
    ) -> T:
        """Enter an asynchronous context manager; it is left when the attempt is over. Else as `enter_context`."""
        self._require_open()
        with blame_boundary(boundary):
            entered = await manager.__aenter__()
        self._push_exit(type(manager).__name__, lambda: manager.__aexit__(None, None, None))
        return entered

    def callback(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Call it (await it, if it is asynchronous) when the attempt ends. Raises AttemptOverError, after calling it at
        once."""
        self._push_exit(getattr(function, "__name__", repr(function)), lambda: function(*args, **kwargs))

    @property
    def holds(self) -> bool:
        """Whether something was entered that has not been left."""
        return bool(self._exits)

    def close(self) -> None:
        """Leave all, from code that has no running event loop. Idempotent."""
        for name, leave in self._take_exits():
            with _warn_on_error(name):
                left = leave()
                if asyncio.iscoroutine(left):
                    _run_close(left)

    async def aclose(self) -> None:
        """Close all in the task that entered them, as managers may want. A cancellation waits until all are left."""
        cancelled: asyncio.CancelledError | None = None
        for name, leave in self._take_exits():
            try:
                with _warn_on_error(name):
                    left = leave()
                    if asyncio.iscoroutine(left):
                        await left
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def close_in_thread(self) -> threading.Thread:
        """Close all in a thread of its own, for an attempt that hangs."""
        thread = threading.Thread(target=self.close, name="ajet-close", daemon=True)
        thread.start()
        return thread

    def _require_open(self) -> None:
        if self._exits is None:
            raise AttemptOverError("the episode is over: nothing is opened for it any more")

    def _push_exit(self, name: str, leave: Callable[[], Any]) -> None:
        with self._lock:
            if self._exits is not None:
                self._exits.append((name, leave))
                return
        with _warn_on_error(name):
            left = leave()
            if asyncio.iscoroutine(left):
                threading.Thread(target=asyncio.run, args=(left,), name="ajet-close", daemon=True).start()
        self._require_open()

    def _take_exits(self) -> list[tuple[str, Any]]:
        if os.getpid() != self._owner:  # a process that user code forked has copies of what its parent goes on with
            return []
        with self._lock:
            found, self._exits = self._exits or [], None
        return found[::-1]


def _run_close(left: Coroutine[Any, Any, Any]) -> None:
    try:
        asyncio.run(asyncio.wait_for(left, PATIENCE_S))
    except asyncio.CancelledError as problem:  # by itself: nobody cancels this loop
        raise RuntimeError("it was cancelled") from problem


@contextmanager
def _warn_on_error(name: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - the border where users' resources are closed
        logger.warning("{} could not be closed with its episode: {}: {}", name, type(problem).__name__, problem)


@contextmanager
def closing(resources: Resources) -> Iterator[None]:
    """Close the resources when the block ends."""
    try:
        yield
    finally:
        resources.close()


@asynccontextmanager
async def aclosing(resources: Resources) -> AsyncIterator[None]:
    """Close `resources` at the end of the block, for code on an event loop."""
    try:
        yield
    finally:
        await resources.aclose()


OPENING = "sandbox.open"
"""The name of the use that the record keeps."""


def find_sandbox_maker(config: Any) -> SandboxFactory:
    """Return what opens sandboxes of the kind that `environment.sandbox` names. Raises UserError."""
    base = Path(config.ajet.base_dir or ".")
    kind = resolve_class(
        config.ajet.environment.sandbox,
        "sandbox",
        base=base,
        what="ajet.environment.sandbox",
        methods=("of", "open"),
        like="ajet.schema.sandbox.SandboxFactory",
    )
    maker: SandboxFactory = kind.of(config.ajet.environment, base)
    return maker


def open_sandbox(
    config: Any, resources: Resources, record: Callable[[ToolUse], None], environment: Mapping[str, str]
) -> Sandbox:
    """See `ModelTuner.sandbox`."""
    began = time.time()
    try:
        sandbox = find_sandbox_maker(config).open(environment)
    except UserError as error:
        raise SandboxFailure(f"{error.what} {error.do}".strip(), retryable=False) from error
    resources.callback(sandbox.close)
    arguments = {"mechanism": sandbox.mechanism, "confined": sandbox.mechanism != "none"}
    record(ToolUse(OPENING, arguments, "", compute_digest(""), began, time.time(), server="sandbox"))
    return sandbox


RESERVE, MOST_RESERVED_S = 0.05, 2.0
"""Part of an attempt's time that no tool gets, and at most so many seconds."""


class Deadline:
    """The time that one attempt has, and a tool within it.

    Invariant: what is inside ends before what it is in: a use of a tool before its attempt, so that its timeout is the
    tool's and is recorded, and not the attempt's. The judge's time begins after the attempt's and is no part of it.
    """

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
