"""Toolset: the tools of one attempt (one rollout of a task), from all its servers.

Invariants: each tool has one name; a name used by two servers gets the server's name as prefix. Wrong names and
arguments are answered without a request to a server. A call that may have reached the server is retried only for a
repeatable tool, or a tool that recognizes call ids; otherwise the attempt's environment is lost. Each use, failed or
not, is passed to `keep` once. If results are replayed from a recorded run, servers start only when the recording has no
answer and live calls are allowed.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from loguru import logger

from ajet.environment.loop import on_tools_loop
from ajet.environment.pinned import Pin, PinnedTools
from ajet.schema.errors import AjetError, EnvironmentFailure
from ajet.schema.json_schema import find_reply_problem, find_schema_problem
from ajet.schema.tool_use import ToolError, ToolUse, compute_digest
from ajet_mcp.confined import Workdir, behind_walls
from ajet_mcp.contract import CallFailedError, Limits, Session, Tool
from ajet_mcp.results import CountTokens, Shown, has_image, shown

if TYPE_CHECKING:
    from ajet_mcp.browse.condenser import Condenser
from ajet_mcp.servers import Server
from ajet_mcp.thin import ThinClient

TRIES = 4
PAUSE_S = 0.1
"""Seconds before the second attempt; doubled for each further attempt."""
LOST: frozenset[ToolError] = frozenset({"transport", "environment", "sandbox"})
"""Error kinds raised to the caller, since the model cannot continue after them."""
LONGEST_NAME = 64
_LONGEST_TAIL = 8
"""Characters reserved for the number that separates two tools of one name."""
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class _BoundTool:
    """An MCP tool with what a call of it needs: its server's name and the open session."""

    tool: Tool
    server: str = ""
    session: Session | None = None
    """The session that calls the tool. None for a tool that only the replayed run has."""
    browsed: bool = False
    """True if long results are condensed."""


class Replays(Protocol):
    """Returns recorded results in place of tool calls (implemented by `environment.replay.Walk`)."""

    def __call__(self, name: str, arguments: Mapping[str, Any], /) -> ToolUse | None: ...

    def tools(self) -> list[dict[str, Any]] | None: ...


class Toolset:
    """Lists and calls the tools of one attempt.

    Create it by `open`. Close it with the attempt, by `async with` or `tuner.resources`.
    """

    def __init__(
        self,
        keep: Callable[[ToolUse], None],
        count: CountTokens,
        result_tokens: int | None,
        images: Callable[[], Awaitable[bool]] | None,
        browse: Condenser | None = None,
        replay: Replays | None = None,
    ) -> None:
        self._keep = keep
        self._count = count
        self._result_tokens = result_tokens
        self._images = images
        self._browse, self._replay = browse, replay
        self._open_sessions: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Opens the sessions later; None if the sessions are open."""
        self._open_lock = asyncio.Lock()
        self._workdir = Workdir()
        self._sessions: list[Session] = []
        self.places: dict[str, _BoundTool] = {}
        self.definitions: list[dict[str, Any]] = []
        """Tool definitions in the form of a request's `tools`."""

    @classmethod
    async def open(
        cls,
        servers: Sequence[Server],
        *,
        keep: Callable[[ToolUse], None],
        count: CountTokens,
        limits: Limits | None = None,
        result_tokens: int | None = None,
        images: Callable[[], Awaitable[bool]] | None = None,
        browse: Condenser | None = None,
        replay: Replays | None = None,
        pin: Pin | None = None,
    ) -> Toolset:
        """Open a session with each server and list the tools.

        Args:
            servers: the tool servers of `environment.use`.
            keep: records a `ToolUse` of the attempt.
            count: returns the number of tokens of a text.
            limits: deadlines and reply size; None for the defaults.
            result_tokens: largest number of tokens of a result shown to the model; None for no limit.
            images: returns True if the model sees images; None if it does.
            browse: condenses long results.
            replay: returns recorded results in place of the servers (`tuner.replay`).
            pin: checks that the tools equal those of the run's first attempt (`tuner.pin`).

        Raises:
            CallFailedError: a server cannot be used.
            ToolsChangedError: the tools differ from the pinned tools.
            EnvironmentFailure: the recording cannot be used.
        """
        toolset = cls(keep, count, result_tokens, images, browse, replay)
        recorded = replay.tools() if replay is not None else None
        try:
            if recorded is None:
                await toolset._open_servers(servers, limits or Limits())
            else:
                toolset._take_recorded(recorded)
                toolset._open_sessions = partial(toolset._open_servers, servers, limits or Limits())
            if pin is not None:
                toolset.definitions = pin(toolset.definitions)
        except BaseException:
            await toolset.close()
            raise
        return toolset

    @property
    def browsed(self) -> list[str]:
        """Names of the tools whose long results the browse agent condenses."""
        return [name for name, place in self.places.items() if place.browsed]

    @property
    def _list_offered(self) -> list[str]:
        """Names of the offered tools."""
        return [definition["function"]["name"] for definition in self.definitions]

    @property
    def pinned(self) -> PinnedTools:
        """The current tool definitions in a form that can be compared with another attempt's."""
        return PinnedTools.of(self.definitions)

    async def use(self, name: str, arguments: str | Mapping[str, Any], call_id: str = "") -> Shown:
        """Call a tool as the model requested it, and return the result shown to the model.

        Mistakes of the model, failures of the tool, timeouts and too large results are results with an `error`.

        Args:
            name: name in the model's call.
            arguments: arguments in the model's call, as JSON text or parsed.
            call_id: the model's id of the call.

        Raises:
            CallFailedError: the environment is lost.
            EnvironmentFailure: the recording has no answer, and live calls are not allowed.
        """
        started, bound_tool = time.time(), self.places.get(name)
        parsed_arguments: Mapping[str, Any] = {}
        loss: EnvironmentFailure | None = None
        try:
            if bound_tool is None:
                raise _Wrong(
                    f"there is no tool {name!r}; the tools are {', '.join(self._list_offered)}", "unknown_tool"
                )
            parsed_arguments = _parse_arguments(arguments, bound_tool.tool)
            if bound_tool.session is None:
                await _check_arguments(parsed_arguments, bound_tool.tool)
            replayed = self._replay(name, parsed_arguments) if self._replay is not None else None
            if replayed is not None:
                return self._replay_use(replayed, parsed_arguments, call_id, started)
            if bound_tool.session is None:
                bound_tool = await self._find_live_tool(name)
            sent, condensed = parsed_arguments, None
            if self._browse is not None and bound_tool.browsed:
                sent, purpose = self._browse.taken(bound_tool.tool, parsed_arguments)
                condensed = partial(self._browse.condensed, bound_tool.tool.name, purpose)
            await _check_arguments(sent, bound_tool.tool)
            reply = await self._call_tool(bound_tool, sent, call_id)
            images = self._images is None or not has_image(reply) or await self._images()
            result = await shown(reply, self._count, self._result_tokens, images=images, condensed=condensed)
        except _Wrong as wrong:
            parsed_arguments = parsed_arguments or {
                "as written": arguments if isinstance(arguments, str) else dict(arguments)
            }
            result = Shown(str(wrong), str(wrong), error=wrong.kind)
        except CallFailedError as problem:
            loss = problem if problem.kind in LOST or problem.lost else None
            result = Shown(_describe_failure(problem), str(problem), error=problem.kind)
        except EnvironmentFailure as problem:  # no recorded answer: the use is recorded for any reaction of the agent
            loss, result = problem, Shown(str(problem), str(problem), error="environment")
        server = bound_tool.server if bound_tool is not None else ""
        full_length = len(result.full_text) if result.text != result.full_text else -1
        digest, end_time = compute_digest(result.full_text), time.time()
        record = (digest, started, end_time, result.error, server, call_id, full_length)
        self._keep(ToolUse(name, parsed_arguments, result.text, *record, images=len(result.images)))
        if loss is not None:
            raise loss
        return result

    async def close(self) -> None:
        """Close all sessions and remove the working folder.

        Idempotent, callable from any task. The work completes even if the caller is cancelled.
        """
        sessions, self._sessions = self._sessions, []

        async def end() -> None:
            """Close the sessions and remove the folder, then raise the first error."""
            results = await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)
            await asyncio.to_thread(self._workdir.remove)  # in a thread: the model may have written many files
            for result in results:
                if isinstance(result, BaseException):
                    raise result

        await on_tools_loop(end(), to_the_end=True)

    async def __aenter__(self) -> Toolset:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()

    async def _open_servers(self, servers: Sequence[Server], limits: Limits) -> None:
        """Open a session with each server in parallel, and set the tool definitions and `places`.

        If recorded tools are offered already, the servers must have the same tools.

        Raises:
            CallFailedError: a server cannot be used.
            ToolsChangedError: the tools differ from the recorded tools.
        """

        async def open_server(server: Server) -> list[_BoundTool]:
            """Open a session with one server, in its sandbox if it is confined, and list its tools."""
            server = behind_walls(server, *self._workdir.made()) if server.confined else server
            session = await on_tools_loop(ThinClient().open(server, limits), unclaimed=lambda late: late.close())
            self._sessions.append(session)
            return [_BoundTool(tool, server.name, session) for tool in await on_tools_loop(session.tools())]

        opened_servers = await asyncio.gather(*map(open_server, servers), return_exceptions=True)
        bound_tools: list[_BoundTool] = []
        tools_by_name: dict[str, _BoundTool] = {}
        for outcome in opened_servers:
            if isinstance(outcome, BaseException):
                raise outcome
            bound_tools += outcome
        definitions: list[dict[str, Any]] = []
        for name, bound_tool in zip(_choose_names(bound_tools), bound_tools, strict=True):
            schema = dict(bound_tool.tool.schema)
            if self._browse is not None and self._browse.wants(name, bound_tool.tool.name):
                schema, bound_tool = self._browse.add_purpose(schema), replace(bound_tool, browsed=True)
            tools_by_name[name] = bound_tool
            function = {"name": name, "description": bound_tool.tool.description, "parameters": schema}
            definitions.append({"type": "function", "function": function})
        if self.places:
            PinnedTools.of(self.definitions).require(PinnedTools.of(definitions))
        else:
            self.definitions = definitions
        self.places = tools_by_name

    def _take_recorded(self, recorded: Sequence[Mapping[str, Any]]) -> None:
        """Offer the tools of the recorded run to the model, without starting a server."""
        self.definitions = [dict(definition) for definition in recorded]
        for definition in self.definitions:
            function = definition["function"]
            name = function["name"]
            tool = Tool(name, function.get("description", ""), function.get("parameters") or {})
            is_condensed = self._browse is not None and self._browse.wants(name, name.rpartition("__")[2])
            self.places[name] = _BoundTool(tool, browsed=is_condensed)

    def _replay_use(self, replayed: ToolUse, arguments: Mapping[str, Any], call_id: str, started_at: float) -> Shown:
        """Return a recorded result, and record it as a use of this attempt.

        Raises:
            CallFailedError: the recorded call lost its environment.
        """
        record = (replayed.digest, started_at, time.time(), replayed.error, replayed.server, call_id, replayed.whole)
        self._keep(ToolUse(replayed.name, arguments, replayed.result, *record))
        if replayed.error in LOST:
            raise CallFailedError(replayed.result, replayed.error, lost=True)
        return Shown(replayed.result, replayed.result, error=replayed.error)

    async def _find_live_tool(self, name: str) -> _BoundTool:
        """Return the tool of a live server, and start all servers at the first call.

        Raises:
            CallFailedError: a server cannot be used.
            ToolsChangedError: the tools differ from the recorded tools.
        """

        async def serve() -> None:
            async with self._open_lock:
                if self._open_sessions is not None:
                    await self._open_sessions()
                    self._open_sessions = None

        await on_tools_loop(serve())
        return self.places[name]

    async def _call_tool(self, bound_tool: _BoundTool, arguments: Mapping[str, Any], call_id: str) -> Any:
        """Call a tool of a live server, and retry a failed transport if a second call does no harm.

        Raises:
            CallFailedError: the call failed, or must not be retried.
        """
        tool, session = bound_tool.tool, bound_tool.session
        assert session is not None
        # Repeating any other call could act twice on the server's state.
        is_repeatable = tool.repeatable or (tool.takes_call_id and bool(call_id))
        for attempt in range(TRIES):
            try:
                sent_id = call_id if tool.takes_call_id else ""
                return await on_tools_loop(session.call(tool.name, arguments, call_id=sent_id))
            except CallFailedError as problem:
                can_retry = (
                    problem.kind == "transport" and not problem.lost and (is_repeatable or not problem.delivered)
                )
                if not can_retry or attempt == TRIES - 1:
                    raise
            await asyncio.sleep(PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")


class _Wrong(AjetError):
    """A mistake of the model in a tool call. `kind` is the error in the record."""

    def __init__(self, message: str, kind: ToolError) -> None:
        super().__init__(message)
        self.kind = kind


def _parse_arguments(arguments: str | Mapping[str, Any], tool: Tool) -> dict[str, Any]:
    """Parse the arguments of a call.

    Raises:
        _Wrong: the arguments are no JSON object.
    """
    try:
        text = (arguments if isinstance(arguments, str) else json.dumps(arguments)).strip() or "{}"
        problem = find_reply_problem(text, {})
    except (TypeError, ValueError) as error:  # values of a custom workflow: a date, an integer too long for Python
        raise _Wrong(f"the arguments of {tool.name} are invalid: {error}", "arguments") from None
    if problem is not None:
        raise _Wrong(f"the arguments of {tool.name} are invalid: {problem}", "arguments")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


async def _check_arguments(arguments: Mapping[str, Any], tool: Tool) -> None:
    """Check arguments against the tool's schema; a schema that cannot be used is left to the server.

    Raises:
        _Wrong: the arguments do not match the schema.
    """

    def find_problem() -> str | None:
        """Return why the arguments do not match, or None; also None, with a warning, for an unusable schema."""
        schema_problem = find_schema_problem(tool.schema)
        if schema_problem is not None:
            _warn_unchecked(tool.name, schema_problem)
            return None
        return find_reply_problem(json.dumps(arguments), tool.schema)

    problem = await asyncio.to_thread(find_problem)  # in a thread: checking a server's schema may take a second
    if problem is not None:
        raise _Wrong(f"the arguments of {tool.name} are invalid: {problem}", "arguments")


@lru_cache(maxsize=1000)
def _warn_unchecked(tool: str, problem: str) -> None:
    """Warn once per tool; the problem is the same for all attempts."""
    logger.warning(
        "ajet does not check the arguments of the tool {}, because its schema cannot be used: {}", tool, problem
    )


def _describe_failure(problem: CallFailedError) -> str:
    """Return a failed call's message for the model."""
    if problem.kind == "timeout":
        return "the tool did not answer in time"
    return "the tool's answer is too large" if problem.kind == "too_large" else str(problem)


def _choose_names(bound_tools: Sequence[_BoundTool]) -> list[str]:
    """Return one name per tool as the model sees it, in the order of `bound_tools`.

    Names are unique and use only characters that OpenAI's API allows, at most 64.
    """
    name_counts = Counter(bound_tool.tool.name for bound_tool in bound_tools)
    names: dict[str, None] = {}
    next_numbers: dict[str, int] = {}
    """The next number to try per name prefix; long names share the prefix left after cutting."""
    for bound_tool in bound_tools:
        name = (
            bound_tool.tool.name
            if name_counts[bound_tool.tool.name] == 1
            else f"{bound_tool.server}__{bound_tool.tool.name}"
        )
        name = plain_name = _NOT_IN_NAMES.sub("_", name)[:LONGEST_NAME]
        prefix = plain_name[: LONGEST_NAME - _LONGEST_TAIL]
        while name in names:
            suffix = f"_{next_numbers.setdefault(prefix, 2)}"
            name = plain_name[: LONGEST_NAME - len(suffix)] + suffix
            next_numbers[prefix] += 1
        names[name] = None
    return list(names)
