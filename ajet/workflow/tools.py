"""Records tool uses: as a block or by wrapping a function.

Invariant: a use is recorded once, when the tool has returned or raised, with the arguments at its start. Recording
changes neither results nor exceptions. Exceptions are classified by class.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Protocol

from ajet.record.files import parse_object
from ajet.record.plain_json import dumps
from ajet.record.tool_uses import bound_arguments
from ajet.schema.errors import AjetError, BoundaryError, EnvironmentFailure, SandboxFailure
from ajet.schema.tool_use import ToolError, ToolUse, compute_digest
from ajet.workflow.resources import Deadline

Record = Callable[[ToolUse], None]
_OF_BOUNDARY: dict[str, ToolError] = {"environment": "environment", "sandbox": "sandbox"}
_TIMEOUTS = (TimeoutError, asyncio.TimeoutError, asyncio.CancelledError)


class Replayed(Protocol):
    """Interface of a recorded run as the source of tool results for one attempt."""

    def __call__(self, name: str, arguments: Mapping[str, Any], /) -> ToolUse | None:
        """Return the recorded use of this call, or None if the tool must be called. Raises EnvironmentFailure."""
        ...

    def tools(self) -> list[dict[str, Any]] | None:
        """Return the recorded tools as a request's `tools`; None to query the servers. Raises EnvironmentFailure."""
        ...


class RunningToolUse(AbstractContextManager["RunningToolUse"]):
    """A use of a tool that is under way."""

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any] | str,
        record: Record,
        replay: Replayed | None = None,
        *,
        call_id: str = "",
        server: str = "",
    ) -> None:
        """Prepare the use of a tool; the block begins with `with`.

        Args:
            name: Name of the tool.
            arguments: A mapping, or the JSON that the model wrote.
            record: Records the use at the end of the block.
            replay: Supplies recorded results. None: the tool is called.
            call_id: Id of the model's tool call.
            server: Name of the server that has the tool.
        """
        self.name, self.arguments = (
            name,
            bound_arguments(arguments if isinstance(arguments, Mapping) else _parse_arguments(arguments)),
        )
        self.result: Any = ""
        """Result shown to the model: text, or a value shown as JSON."""
        self.whole: str | None = None
        """Complete result, if the model is shown less."""
        self.error: ToolError = ""
        """Error class; set by an exception in the block."""
        self.call_id, self.server = call_id, server
        self.replayed = False
        """True if the recorded run has supplied the result, so the tool must not be called."""
        self._replay = replay
        self._record = record
        self._started_at = 0.0
        self._json = False
        self._digest, self._full_length = "", -1

    def __enter__(self) -> RunningToolUse:
        """Start the use. In a replay, take the recorded result if there is one."""
        self._started_at = time.time()
        if self._replay is not None:
            try:
                recorded = self._replay(self.name, self.arguments)
            except Exception:  # the error is recorded even if the agent handles it
                self.error = "environment"
                self.__exit__(*sys.exc_info())
                raise
            if recorded is not None:
                self._take_recorded(recorded)
        return self

    def value(self) -> Any:
        """Return the recorded result of a replayed function, or raise an error of the recorded class."""
        if self.error:
            raise _RAISED.get(self.error, ToolFailedError)(self.result)
        return json.loads(self.result) if self._json else self.result

    def _take_recorded(self, recorded: ToolUse) -> None:
        """Use the result and error of a recorded tool use."""
        self.replayed = True
        self.result = recorded.result
        self.error = recorded.error
        self._json = recorded.json
        self._digest, self._full_length = recorded.digest, recorded.whole

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the use and record it. An exception of the block passes through."""
        end_time = time.time()
        if not self.replayed:
            self._finish_result(problem)
        recorded_fields = (self._digest, self._started_at, end_time, self.error, self.server, self.call_id)
        self._record(
            ToolUse(self.name, self.arguments, self.result, *recorded_fields, whole=self._full_length, json=self._json)
        )

    def _finish_result(self, problem: BaseException | None) -> None:
        """Convert the result to text and compute its digest. An exception of the block is classified.

        The exception's text is the result if the block has set none.
        """
        self._json = not isinstance(self.result, str)
        self.result = result_text(self.result)
        if problem is not None:
            self.error = self.error or classify_error(problem)
            self.result = self.result or f"{type(problem).__name__}: {problem}"
        self._digest = compute_digest(self.result if self.whole is None else self.whole)
        self._full_length = -1 if self.whole is None else len(self.whole)


class ToolFailedError(AjetError):
    """A replayed tool's error, where the record knows no other class for it."""


_RAISED: dict[ToolError, type[Exception]] = {
    "timeout": TimeoutError,
    "transport": ConnectionError,
    "environment": EnvironmentFailure,
    "sandbox": SandboxFailure,
}


def classify_error(problem: BaseException) -> ToolError:
    """Return the error class of a tool's exception: environment, sandbox, timeout, transport, or else tool."""
    if isinstance(problem, BoundaryError):
        return _OF_BOUNDARY.get(problem.boundary, "tool")
    if isinstance(problem, _TIMEOUTS):
        return "timeout"
    return "transport" if isinstance(problem, ConnectionError) else "tool"


def result_text(result: Any) -> str:
    """Return a tool's result as text: a string unchanged, any other value as JSON."""
    return result if isinstance(result, str) else dumps(result)


def record_calls(
    function: Callable[..., Any], record: Record, replay: Replayed | None = None, deadline: Deadline | None = None
) -> Callable[..., Any]:
    """Return a function that calls `function` and records each call as a tool use, with its arguments by name.

    Args:
        record: Records a tool use.
        replay: Supplies recorded results; the function is then not called. None: it is always called.
        deadline: Bounds the calls of an async function. None: no limit.
    """
    limit = deadline or Deadline(None)
    name = getattr(_unwrap_partial(function), "__name__", type(function).__name__)
    name_arguments = _make_argument_namer(function)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with RunningToolUse(name, name_arguments(args, kwargs), record, replay) as running:
                if running.replayed:
                    return running.value()
                running.result = result = await asyncio.wait_for(function(*args, **kwargs), limit.of_a_tool)
            return result

        return awaited

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with RunningToolUse(name, name_arguments(args, kwargs), record, replay) as running:
            if running.replayed:
                return running.value()
            running.result = result = function(*args, **kwargs)
        return result

    return called


def _parse_arguments(written: str) -> dict[str, Any]:
    """Return the arguments in a model's JSON text; a text that is no JSON object is returned as {"written": text}."""
    try:
        parsed = parse_object(written)
    except ValueError:
        return {"written": written}
    return parsed


def _unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside of `functools.partial` objects."""
    return _unwrap_partial(function.func) if isinstance(function, partial) else function


def _make_argument_namer(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """Return a function that maps call arguments to parameter names."""
    if isinstance(function, partial):
        name_inner_arguments, bound_arguments, bound_keywords = (
            _make_argument_namer(function.func),
            function.args,
            function.keywords,
        )
        return lambda args, kwargs: name_inner_arguments((*bound_arguments, *args), {**bound_keywords, **kwargs})
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function written in C may have no signature
        return lambda args, kwargs: {**{str(index): value for index, value in enumerate(args)}, **kwargs}
    keyword_parameters = [
        parameter.name for parameter in signature.parameters.values() if parameter.kind is parameter.VAR_KEYWORD
    ]

    def named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of one call by parameter name."""
        try:
            arguments = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError:  # the call itself raises an error that explains the mistake
            return {"args": list(args), **kwargs}
        for parameter_name in keyword_parameters:  # the values of **kwargs are recorded under their own names
            arguments |= arguments.pop(parameter_name, {})
        return arguments

    return named
