"""Toolset: all tools of one attempt, of however many servers.

Invariants: a model is told each tool under one name, a name that two servers share with the server before it; what it
gets wrong (a name, arguments) is answered without asking any server. A call that may have been delivered is sent again
only where its tool says that this does no harm, or knows the call by our id; else the environment is lost. Each use is
handed to `keep` once, failed or not. Where a recorded run answers, no server is started or asked before it has no
answer and may be asked.
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
from typing import Any, Protocol

from loguru import logger

from ajet.environment.loop import on_tools_loop
from ajet.environment.pinned import Pin, PinnedTools
from ajet.schema.errors import AjetError, EnvironmentFailure
from ajet.schema.json_schema import find_reply_problem, find_schema_problem
from ajet.schema.tool_use import ToolError, ToolUse, compute_digest
from ajet_mcp.confined import Workdir, behind_walls
from ajet_mcp.contract import CallFailedError, Limits, Session, Tool
from ajet_mcp.results import CountTokens, Shown, has_image, shown
from ajet_mcp.servers import Server
from ajet_mcp.thin import ThinClient

TRIES = 4
PAUSE_S = 0.1
"""Before the second of them; doubled before each further one."""
LOST: frozenset[ToolError] = frozenset({"transport", "environment", "sandbox"})
"""Nothing that a model could go on with: these are raised."""
LONGEST_NAME = 64
_LONGEST_TAIL = 8
"""Characters of the number that tells two tools of one name apart."""
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a tool: its session, and its name there."""

    tool: Tool
    server: str = ""
    session: Session | None = None
    """None: only a recorded run knows this tool so far."""
    browsed: bool = False
    """Its long results are condensed."""


class Replays(Protocol):
    """Answers in place of tools: see `environment.replay.Walk`."""

    def __call__(self, name: str, arguments: Mapping[str, Any], /) -> ToolUse | None: ...

    def tools(self) -> list[dict[str, Any]] | None: ...


class Condenses(Protocol):
    """Puts something shorter in the place of long results: see `environment.browse`."""

    def wants(self, *names: str) -> bool: ...

    def told(self, schema: Mapping[str, Any]) -> dict[str, Any]: ...

    def taken(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str]: ...

    async def condensed(self, tool: str, purpose: str, whole: str) -> str | None: ...


class Toolset:
    """Opened with `open`, closed with the attempt (`async with`, or `tuner.resources`)."""

    def __init__(
        self,
        keep: Callable[[ToolUse], None],
        count: CountTokens,
        result_tokens: int | None,
        images: Callable[[], Awaitable[bool]] | None,
        browse: Condenses | None = None,
        replay: Replays | None = None,
    ) -> None:
        self._keep, self._count, self._result_tokens, self._images = keep, count, result_tokens, images
        self._browse, self._replay = browse, replay
        self._serve: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Opens the sessions, where that is still to be done."""
        self._serving = asyncio.Lock()
        self._workdir = Workdir()
        self._sessions: list[Session] = []
        self.places: dict[str, _Place] = {}
        self.told: list[dict[str, Any]] = []
        """As a request's `tools`."""

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
        browse: Condenses | None = None,
        replay: Replays | None = None,
        pin: Pin | None = None,
    ) -> Toolset:
        """A session with each server, and their tools. `count` and `result_tokens` cut results; `images`: whether the
        model sees them; `browse` condenses those of its tools; `replay` (`tuner.replay`) answers in place of servers;
        `pin` (`tuner.pin`) holds the tools to those of the run. Raises CallFailedError, ToolsChangedError,
        EnvironmentFailure."""
        opened = cls(keep, count, result_tokens, images, browse, replay)
        recorded = replay.tools() if replay is not None else None
        try:
            if recorded is None:
                await opened._open_servers(servers, limits or Limits())
            else:
                opened._take_recorded(recorded)
                opened._serve = partial(opened._open_servers, servers, limits or Limits())
            if pin is not None:
                opened.told = pin(opened.told)
        except BaseException:
            await opened.close()
            raise
        return opened

    @property
    def browsed(self) -> list[str]:
        """Tools whose long results are condensed."""
        return [name for name, place in self.places.items() if place.browsed]

    @property
    def _list_offered(self) -> list[str]:
        return [each["function"]["name"] for each in self.told]

    @property
    def pinned(self) -> PinnedTools:
        """The tools as they are, to hold others against."""
        return PinnedTools.of(self.told)

    async def use(self, name: str, arguments: str | Mapping[str, Any], call_id: str = "") -> Shown:
        """Call a tool as a model asked for it. What the model got wrong, what the tool says that it cannot, a time
        limit and a result beyond all bounds are results with an `error`. Raises CallFailedError where the environment
        is lost."""
        started, place = time.time(), self.places.get(name)
        given: Mapping[str, Any] = {}
        lost: EnvironmentFailure | None = None
        try:
            if place is None:
                raise _Wrong(f"there is no tool {name!r}; there are {', '.join(self._list_offered)}", "unknown_tool")
            given = _parse_arguments(arguments, place.tool)
            if place.session is None:
                await _check_arguments(given, place.tool)
            again = self._replay(name, given) if self._replay is not None else None
            if again is not None:
                return self._replay_use(again, given, call_id, started)
            if place.session is None:
                place = await self._find_live_tool(name)
            sent, condensed = given, None
            if self._browse is not None and place.browsed:
                sent, purpose = self._browse.taken(place.tool, given)
                condensed = partial(self._browse.condensed, place.tool.name, purpose)
            await _check_arguments(sent, place.tool)
            reply = await self._call_tool(place, sent, call_id)
            images = self._images is None or not has_image(reply) or await self._images()
            result = await shown(reply, self._count, self._result_tokens, images=images, condensed=condensed)
        except _Wrong as wrong:
            given = given or {"as written": arguments if isinstance(arguments, str) else dict(arguments)}
            result = Shown(str(wrong), str(wrong), error=wrong.kind)
        except CallFailedError as problem:
            lost = problem if problem.kind in LOST or problem.lost else None
            result = Shown(_describe_problem(problem), str(problem), error=problem.kind)
        except EnvironmentFailure as problem:  # a miss: whatever the agent makes of it, the record has it
            lost, result = problem, Shown(str(problem), str(problem), error="environment")
        server = place.server if place is not None else ""
        whole = len(result.whole) if result.text != result.whole else -1
        digest, ended = compute_digest(result.whole), time.time()
        told = (digest, started, ended, result.error, server, call_id, whole)
        self._keep(ToolUse(name, given, result.text, *told, images=len(result.images)))
        if lost is not None:
            raise lost
        return result

    async def close(self) -> None:
        """All sessions, and the working folder. Idempotent, from any task; goes on where the caller is cancelled."""
        sessions, self._sessions = self._sessions, []

        async def end() -> None:
            ended = await asyncio.gather(*(each.close() for each in sessions), return_exceptions=True)
            await asyncio.to_thread(self._workdir.remove)  # files of a model's, however many
            for each in ended:
                if isinstance(each, BaseException):
                    raise each

        await on_tools_loop(end(), to_the_end=True)

    async def __aenter__(self) -> Toolset:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()

    async def _open_servers(self, servers: Sequence[Server], limits: Limits) -> None:
        async def opened(server: Server) -> list[_Place]:
            server = behind_walls(server, *self._workdir.made()) if server.confined else server
            session = await on_tools_loop(ThinClient().open(server, limits), unclaimed=lambda late: late.close())
            self._sessions.append(session)
            return [_Place(tool, server.name, session) for tool in await on_tools_loop(session.tools())]

        found = await asyncio.gather(*map(opened, servers), return_exceptions=True)
        places: list[_Place] = []
        found_now: dict[str, _Place] = {}
        for each in found:
            if isinstance(each, BaseException):
                raise each
            places += each
        told: list[dict[str, Any]] = []
        for name, place in zip(_choose_names(places), places, strict=True):
            schema = dict(place.tool.schema)
            if self._browse is not None and self._browse.wants(name, place.tool.name):
                schema, place = self._browse.told(schema), replace(place, browsed=True)
            found_now[name] = place
            function = {"name": name, "description": place.tool.description, "parameters": schema}
            told.append({"type": "function", "function": function})
        if self.places:
            PinnedTools.of(self.told).require(PinnedTools.of(told))
        else:
            self.told = told
        self.places = found_now

    def _take_recorded(self, recorded: Sequence[Mapping[str, Any]]) -> None:
        """The tools that a recorded run offered."""
        self.told = [dict(each) for each in recorded]
        for each in self.told:
            function = each["function"]
            name = function["name"]
            tool = Tool(name, function.get("description", ""), function.get("parameters") or {})
            browsed = self._browse is not None and self._browse.wants(name, name.rpartition("__")[2])
            self.places[name] = _Place(tool, browsed=browsed)

    def _replay_use(self, again: ToolUse, given: Mapping[str, Any], call_id: str, started: float) -> Shown:
        """A use as a recorded run has it. Raises CallFailedError where that lost its environment."""
        told = (again.digest, started, time.time(), again.error, again.server, call_id, again.whole)
        self._keep(ToolUse(again.name, given, again.result, *told))
        if again.error in LOST:
            raise CallFailedError(again.result, again.error, lost=True)
        return Shown(again.result, again.result, error=again.error)

    async def _find_live_tool(self, name: str) -> _Place:
        """The tool itself, of a server that is asked from now on. Raises CallFailedError, and ToolsChangedError where
        it is not as it was recorded."""

        async def serve() -> None:
            async with self._serving:
                if self._serve is not None:
                    await self._serve()
                    self._serve = None

        await on_tools_loop(serve())
        return self.places[name]

    async def _call_tool(self, place: _Place, arguments: Mapping[str, Any], call_id: str) -> Any:
        tool, session = place.tool, place.session
        assert session is not None
        safe = tool.repeatable or (tool.takes_call_id and bool(call_id))
        for number in range(TRIES):
            try:
                sent_id = call_id if tool.takes_call_id else ""
                return await on_tools_loop(session.call(tool.name, arguments, call_id=sent_id))
            except CallFailedError as problem:
                again = problem.kind == "transport" and not problem.lost and (safe or not problem.delivered)
                if not again or number == TRIES - 1:
                    raise
            await asyncio.sleep(PAUSE_S * 2**number)
        raise AssertionError("unreachable")


class _Wrong(AjetError):
    """The model's own mistake."""

    def __init__(self, message: str, kind: ToolError) -> None:
        super().__init__(message)
        self.kind = kind


def _parse_arguments(given: str | Mapping[str, Any], tool: Tool) -> dict[str, Any]:
    """Raises _Wrong for what is no object."""
    try:
        text = (given if isinstance(given, str) else json.dumps(given)).strip() or "{}"
        problem = find_reply_problem(text, {})
    except (TypeError, ValueError) as error:  # a workflow's own values: a date, an integer beyond what Python writes
        raise _Wrong(f"these are no arguments of {tool.name}: {error}", "arguments") from None
    if problem is not None:
        raise _Wrong(f"these are no arguments of {tool.name}: {problem}", "arguments")
    read: dict[str, Any] = json.loads(text)
    return read


async def _check_arguments(arguments: Mapping[str, Any], tool: Tool) -> None:
    """Raises _Wrong for what does not keep to the tool's schema; by one that cannot be used only the server judges."""

    def find_problem() -> str | None:
        unchecked = find_schema_problem(tool.schema)
        if unchecked is not None:
            _warn_unchecked(tool.name, unchecked)
            return None
        return find_reply_problem(json.dumps(arguments), tool.schema)

    problem = await asyncio.to_thread(find_problem)  # the schema is the server's: its check may take a second
    if problem is not None:
        raise _Wrong(f"these are no arguments of {tool.name}: {problem}", "arguments")


@lru_cache(maxsize=1000)
def _warn_unchecked(tool: str, problem: str) -> None:
    """Say once what holds for all attempts."""
    logger.warning("Arguments of the tool {} are sent unchecked, its schema cannot be used: {}.", tool, problem)


def _describe_problem(problem: CallFailedError) -> str:
    if problem.kind == "timeout":
        return "the tool did not answer in time"
    return "the tool's answer is too large" if problem.kind == "too_large" else str(problem)


def _choose_names(places: Sequence[_Place]) -> list[str]:
    """The names that models are told, in the same order: each once, of characters that requests allow."""
    times = Counter(place.tool.name for place in places)
    found: dict[str, None] = {}
    numbers: dict[str, int] = {}
    """The number that the next tool is tried with whose name begins so; long names share what is cut off of them."""
    for place in places:
        name = place.tool.name if times[place.tool.name] == 1 else f"{place.server}__{place.tool.name}"
        name = wanted = _NOT_IN_NAMES.sub("_", name)[:LONGEST_NAME]
        start = wanted[: LONGEST_NAME - _LONGEST_TAIL]
        while name in found:
            tail = f"_{numbers.setdefault(start, 2)}"
            name = wanted[: LONGEST_NAME - len(tail)] + tail
            numbers[start] += 1
        found[name] = None
    return list(found)
