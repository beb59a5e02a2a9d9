"""Resources: objects opened by an attempt (environment, tool session, sandbox, files) and closed with the attempt.

Invariant: every entered resource is exited once, in reverse order, for any end of the attempt: return, exception,
cancellation, time limit, end of the process or of its parent. A forked process exits nothing. A finished attempt enters
nothing. An error on open names its boundary; an error on close is a warning, since the episode is complete. Runs of
unconfined code (`environment.sandbox: none`) are recorded per episode, with a warning at launch.

Resources are closed by the task or thread of the attempt; for a hanging attempt by another thread (asynchronous ones
get a new event loop); in a worker process by the process itself before its end.
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
    """The attempt has ended and may open nothing."""


@contextmanager
def blame_boundary(boundary: Outside) -> Iterator[None]:
    """Turn errors of the block into an EnvironmentFailure or ToolFailure: the attempt is retried, and never trained on.

    A BoundaryError passes unchanged.
    """
    try:
        yield
    except BoundaryError:
        raise
    except Exception as error:
        raise _FAILURES[boundary](f"{type(error).__name__}: {error}") from error


class Resources:
    """Resources of one attempt, with the method names of contextlib.ExitStack. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._exit_functions: list[tuple[str, Any]] | None = []
        """(name, exit function) in order of entry; None after the end of the attempt."""

    def enter_context(self, manager: AbstractContextManager[T], *, boundary: Outside = "environment") -> T:
        """Enter a context manager and exit it at the end of the attempt.

        Raises:
            EnvironmentFailure, ToolFailure: the manager raised, by `boundary`.
            AttemptOverError: the attempt has ended.
        """
        self._require_open()
        with blame_boundary(boundary):
            entered = manager.__enter__()
        self._push_exit(type(manager).__name__, lambda: manager.__exit__(None, None, None))
        return entered

    async def enter_async_context(
        self, manager: AbstractAsyncContextManager[T], *, boundary: Outside = "environment"
    ) -> T:
        """Enter an asynchronous context manager; otherwise like `enter_context`."""
        self._require_open()
        with blame_boundary(boundary):
            entered = await manager.__aenter__()
        self._push_exit(type(manager).__name__, lambda: manager.__aexit__(None, None, None))
        return entered

    def callback(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Call (or await) the function at the end of the attempt.

        Raises:
            AttemptOverError: the attempt has ended; the function was called at once.
        """
        self._push_exit(getattr(function, "__name__", repr(function)), lambda: function(*args, **kwargs))

    @property
    def holds(self) -> bool:
        """True if a resource is open."""
        return bool(self._exit_functions)

    def close(self) -> None:
        """Close all resources in reverse order, from code without a running event loop. Idempotent."""
        for name, exit_function in self._take_exits():
            with _warn_on_error(name):
                close_result = exit_function()
                if asyncio.iscoroutine(close_result):
                    _run_close(close_result)

    async def aclose(self) -> None:
        """Close all resources in reverse order, in the task that entered them, as some context managers require.

        A cancellation is raised after all resources are closed.
        """
        cancelled: asyncio.CancelledError | None = None
        for name, exit_function in self._take_exits():
            try:
                with _warn_on_error(name):
                    close_result = exit_function()
                    if asyncio.iscoroutine(close_result):
                        await close_result
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def close_in_thread(self) -> threading.Thread:
        """Close all resources in a new thread and return the thread, for an attempt that hangs."""
        thread = threading.Thread(target=self.close, name="ajet-close", daemon=True)
        thread.start()
        return thread

    def _require_open(self) -> None:
        """Raise AttemptOverError if the attempt has ended."""
        if self._exit_functions is None:
            raise AttemptOverError("the episode has ended, so it can open no further resources")

    def _push_exit(self, name: str, exit_function: Callable[[], Any]) -> None:
        """Store a function that closes a resource. After the end of the attempt, call it at once.

        Args:
            name: Name of the resource, for a warning.
            exit_function: Closes the resource; may return a coroutine.

        Raises:
            AttemptOverError: the attempt has ended.
        """
        with self._lock:
            if self._exit_functions is not None:
                self._exit_functions.append((name, exit_function))
                return
        with _warn_on_error(name):
            close_result = exit_function()
            if asyncio.iscoroutine(close_result):
                threading.Thread(target=asyncio.run, args=(close_result,), name="ajet-close", daemon=True).start()
        self._require_open()

    def _take_exits(self) -> list[tuple[str, Any]]:
        """Return (name, exit function) of each resource, the last entered first, and end the attempt.

        Each function is returned once.
        """
        if os.getpid() != self._owner:  # in a process forked by user code the exits belong to the parent
            return []
        with self._lock:
            exits, self._exit_functions = self._exit_functions or [], None
        return exits[::-1]


def _run_close(close_coroutine: Coroutine[Any, Any, Any]) -> None:
    """Await the closing of a resource in a new event loop, for at most PATIENCE_S seconds."""
    try:
        asyncio.run(asyncio.wait_for(close_coroutine, PATIENCE_S))
    except asyncio.CancelledError as error:  # the coroutine cancelled itself: no other code cancels this loop
        raise RuntimeError("opening the resource was cancelled") from error


@contextmanager
def _warn_on_error(name: str) -> Iterator[None]:
    """Log an error of the block, since the episode is complete and its resources' errors do not change it."""
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the border where users' resources are closed
        logger.warning("{} could not be closed at the end of its episode: {}: {}", name, type(error).__name__, error)


@contextmanager
def closing(resources: Resources) -> Iterator[None]:
    """Close the resources of an attempt when the block ends, for code without an event loop."""
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
"""Name under which opening a sandbox is recorded as a tool use."""


def find_sandbox_maker(config: Any) -> SandboxFactory:
    """Return the object that opens sandboxes of the kind `environment.sandbox`.

    Raises:
        UserError: the kind is unknown, or cannot be used on this machine.
    """
    base = Path(config.ajet.base_dir or ".")
    sandbox_class = resolve_class(
        config.ajet.environment.sandbox,
        "sandbox",
        base=base,
        key="ajet.environment.sandbox",
        methods=("of", "open"),
        like="ajet.schema.sandbox.SandboxFactory",
    )
    maker: SandboxFactory = sandbox_class.of(config.ajet.environment, base)
    return maker


def open_sandbox(
    config: Any, resources: Resources, record: Callable[[ToolUse], None], environment: Mapping[str, str]
) -> Sandbox:
    """Open a sandbox that is closed with `resources`, and record the opening as a tool use.

    Args:
        config: The composed config.
        resources: Resources of the attempt.
        record: Records a tool use of the attempt.
        environment: Environment variables within the sandbox.

    Raises:
        SandboxFailure: the sandbox cannot be opened; a further attempt would not help.
    """
    started = time.time()
    try:
        sandbox = find_sandbox_maker(config).open(environment)
    except UserError as error:
        raise SandboxFailure(f"{error.what} {error.do}".strip(), retryable=False) from error
    resources.callback(sandbox.close)
    arguments = {"mechanism": sandbox.mechanism, "confined": sandbox.mechanism != "none"}
    record(ToolUse(OPENING, arguments, "", compute_digest(""), started, time.time(), server="sandbox"))
    return sandbox


RESERVE, MOST_RESERVED_S = 0.05, 2.0
"""Share of an attempt's time reserved after the last tool, and its maximum in seconds."""


class Deadline:
    """Deadlines of one attempt and its tool uses.

    Invariant: a tool use ends before its attempt, so a timeout is recorded as the tool's. The judge's time starts after
    the attempt and is separate.
    """

    def __init__(self, attempt: float | None, tool: float | None = None, *, passed: float = 0.0) -> None:
        """Start the limits.

        Args:
            attempt: Seconds of the attempt. None: no limit.
            tool: Seconds of one tool use. None: no limit.
            passed: Elapsed seconds of the attempt.
        """
        self._attempt_end = math.inf if attempt is None else time.monotonic() + attempt - passed
        self._reserved_s = 0.0 if attempt is None else min(MOST_RESERVED_S, RESERVE * attempt)
        self._tool_timeout = math.inf if tool is None else tool

    @property
    def left(self) -> float:
        """Seconds until the end of the attempt; infinite without a limit."""
        return max(0.0, self._attempt_end - time.monotonic())

    @property
    def of_a_tool(self) -> float | None:
        """Maximum seconds of a tool use started now; None: no limit."""
        seconds = min(self._tool_timeout, max(0.0, self.left - self._reserved_s))
        return None if math.isinf(seconds) else seconds
