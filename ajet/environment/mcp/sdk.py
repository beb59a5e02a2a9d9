"""The `mcp` SDK as a client: for what the thin one does not speak, and as the second reading of the protocol.

Invariants: a session is opened, used and closed in one task of its own (the SDK's cancel scopes allow no other), on the
tools' loop; others wait for that task's answers. What the SDK shows as a cancellation that nobody asked for, as a hang,
or as a torn task group is a `CallFailed`. Processes are ours (`ServerProcess`), and bytes are counted before the SDK
parses them. What differs between the SDK's lines, 1.x and 2.x, is `sdk_lines`'.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from ajet.environment.mcp.contract import CallFailed, Limits, Reply, Session, Tool
from ajet.environment.mcp.processes import ServerProcess
from ajet.environment.mcp.sdk_lines import sdk_line
from ajet.environment.mcp.servers import Server
from ajet.environment.mcp.thin.client import PAGES, ThinClient
from ajet.environment.mcp.thin.told import CALL_ID, lost_at_front, reply_of, tool_of

T = TypeVar("T")


class SdkClient:
    """The SDK's. Its sessions are opened on the tools' loop."""

    def __init__(self) -> None:
        """Imports the package, which takes a second. Raises MissingExtra without it."""
        sdk_line()

    async def open(self, server: Server, limits: Limits) -> Session:
        """Raises CallFailed. AgentDock's interface, which is no MCP, is spoken by the thin client."""
        if server.kind == "dock":
            return await ThinClient().open(server, limits)
        session = SdkSession(server, limits)
        try:
            await session.start()
        except BaseException:
            await session.close()
            raise
        return session


class _Job(NamedTuple):
    work: Callable[[Any], Coroutine[Any, Any, Any]]
    answer: asyncio.Future[Any]


class SdkSession:
    """One attempt's session: a task, and a queue to it."""

    def __init__(self, server: Server, limits: Limits) -> None:
        loop = asyncio.get_running_loop()
        self._server, self._limits, self._line = server, limits, sdk_line()
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._broken: asyncio.Future[CallFailed] = loop.create_future()
        """Settled by what watches the connection, where the SDK says nothing."""
        self._closing = False
        self._task = loop.create_task(self._live())

    async def start(self) -> None:
        """Raises CallFailed."""
        await _first_of(self._ready, self._broken, seconds=self._limits.start)
        if self._broken.done():
            raise self._broken.result()
        if not self._ready.done():
            raise CallFailed(f"{self._named} did not answer within {self._limits.start:g} s", "environment", lost=True)

    @property
    def ended(self) -> bool:
        """See Session."""
        return self._broken.done() or self._task.done()

    async def tools(self) -> Sequence[Tool]:
        """Every page."""

        async def listed(session: Any) -> list[Tool]:
            found: list[Tool] = []
            cursor: str | None = None
            for _ in range(PAGES):
                page = _wire(await session.list_tools(params=self._line.page(cursor)))
                found += [tool for each in page["tools"] if (tool := tool_of(each)) is not None]
                cursor = page.get("nextCursor")
                if cursor is None:
                    return found
            raise CallFailed(f"its list of tools has more than {PAGES} pages", "environment")

        return await self._asked(listed)

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str = "") -> Reply:
        """Once."""
        seconds = self._line.seconds(self._server.timeout or self._limits.call)
        meta = {CALL_ID: call_id} if call_id else None

        async def called(session: Any) -> Reply:
            found = await session.call_tool(name, dict(arguments), read_timeout_seconds=seconds, meta=meta)
            return reply_of(_wire(found))

        return await self._asked(called)

    async def close(self) -> None:
        """Idempotent; from any task."""
        self._closing = True
        self._jobs.put_nowait(None)
        await asyncio.wait([self._task], timeout=self._limits.close + 1)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1)
        if not self._ready.done():
            self._ready.cancel()

    async def _asked(self, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
        if self._broken.done() or self._closing:
            said = str(self._broken.result()) if self._broken.done() else "this session is closed"
            raise CallFailed(said, "environment", delivered=False, lost=True)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait(_Job(work, answer))
        seconds = self._server.timeout or self._limits.call
        try:
            await _first_of(answer, self._broken, seconds=seconds + 1)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        if answer.done():
            return answer.result()
        answer.cancel()
        if self._broken.done():
            raise self._broken.result()
        raise CallFailed(f"{self._named} did not answer within {seconds:g} s", "timeout")

    async def _live(self) -> None:
        """The task that the SDK lives in."""
        problem = CallFailed(f"{self._named} ended the session", "transport", lost=True)
        running: set[asyncio.Task[None]] = set()
        try:
            async with AsyncExitStack() as stack:
                session = await self._line.begun(stack, self._transport())
                self._ready.set_result(None)
                while (job := await self._jobs.get()) is not None:
                    task = asyncio.create_task(self._perform(session, job))
                    _cancel_with(job.answer, task)
                    running.add(task)
                    task.add_done_callback(running.discard)
                for task in running:
                    task.cancel()
        except asyncio.CancelledError:
            if self._closing:
                raise
        except BaseException as raised:  # noqa: BLE001 - the border to the SDK, whose groups hold anything
            problem = _first(raised) or CallFailed(f"{self._named}: {_said(raised)}", "transport", lost=True)
            if not self._ready.done():
                problem.delivered = False
        finally:
            self._break(problem)

    async def _perform(self, session: Any, job: _Job) -> None:
        try:
            result = await job.work(session)
        except asyncio.CancelledError:
            if not job.answer.done():
                self._break(CallFailed(f"{self._named} was lost: the SDK cancelled a call", "transport", lost=True))
            return
        except self._line.error as error:
            result = self._reply_to(error)
        except Exception as raised:  # noqa: BLE001 - the same border
            result = CallFailed(f"{self._named}: {_said(raised)}", "transport")
        if job.answer.done():
            return
        if isinstance(result, CallFailed):
            job.answer.set_exception(result)
        else:
            job.answer.set_result(result)

    def _reply_to(self, error: Any) -> Reply | CallFailed:
        meaning, said = self._line.meaning(error), f"{self._named}: {error.error.message}"
        if meaning == "terminated":
            return CallFailed(f"{said}: it knows this session no more", "environment", delivered=False, lost=True)
        if meaning == "timed_out":
            return CallFailed(said, "timeout")
        if meaning == "closed":
            return CallFailed(said, "transport", lost=True)
        lost = lost_at_front(said, error.error.data)
        return lost or Reply(({"type": "text", "text": error.error.message},), failed=True)

    def _break(self, problem: CallFailed) -> None:
        if not self._broken.done():
            self._broken.set_result(problem)

    @property
    def _named(self) -> str:
        return f"the MCP server {self._server.name}"

    def _transport(self) -> AbstractAsyncContextManager[tuple[Any, Any]]:
        if self._server.kind == "stdio":
            return self._pipes()
        return self._http()

    @asynccontextmanager
    async def _http(self) -> AsyncIterator[tuple[Any, Any]]:
        http, server, seconds = self._line.http, self._server, self._server.timeout or self._limits.call

        def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:
            wait = http.Timeout(30, read=seconds + 1)
            return http.AsyncClient(headers=dict(server.headers), timeout=wait, transport=_watched(http)(self))

        if server.kind == "sse":
            async with self._line.sse(server.url, client) as (read, write):
                yield read, write
            return
        async with client() as opened, self._line.streamable_http(server.url, opened) as (read, write, *_):
            yield read, write

    @asynccontextmanager
    async def _pipes(self) -> AsyncIterator[tuple[Any, Any]]:
        import anyio

        process = await ServerProcess.start(self._server)
        put, read = anyio.create_memory_object_stream[Any](64)
        write, get = anyio.create_memory_object_stream[Any](64)

        async def reading() -> None:
            async for line in process.lines(self._limits.reply_bytes):
                if line is None:
                    self._break(too_large(self._named, self._limits.reply_bytes))
                    return
                with suppress(ValueError):  # a line that is no JSON-RPC is passed over
                    await put.send(self._line.message(line))
            self._break(await process.gone())

        async def writing() -> None:
            async for message in get:
                try:
                    await process.write(message.message.model_dump_json(by_alias=True, exclude_none=True).encode())
                except CallFailed as problem:
                    self._break(problem)
                    return

        tasks = [asyncio.create_task(reading()), asyncio.create_task(writing())]
        try:
            yield read, write
        finally:
            for task in tasks:
                task.cancel()
            await process.end(self._limits.close)
            for stream in (put, read, write, get):
                stream.close()

    def note(self, problem: CallFailed) -> None:
        """Keep a failure that the SDK's transport does not tell its caller."""
        self._break(problem)

    @property
    def is_ready(self) -> bool:
        """Whether the server has been found to speak."""
        return self._ready.done()

    @property
    def reply_bytes(self) -> int:
        """The longest reply."""
        return self._limits.reply_bytes


@lru_cache(maxsize=1)
def _watched(http: Any) -> Any:
    """A transport of that HTTP library, which tells the session what goes wrong, and cuts a reply at the limit."""

    class Counted(http.AsyncByteStream):
        """A reply's bytes; what counts is what has come since the last event ended."""

        def __init__(self, inner: Any, session: SdkSession, is_reply: bool) -> None:
            self._inner, self._session, self._is_reply = inner, session, is_reply

        async def __aiter__(self) -> AsyncIterator[bytes]:
            taken = 0
            try:
                async for chunk in self._inner:
                    border = max(chunk.rfind(b"\n\n"), chunk.rfind(b"\n\r\n"))
                    taken = taken + len(chunk) if border < 0 else len(chunk) - border
                    if taken > self._session.reply_bytes:
                        self._session.note(too_large("the MCP server", self._session.reply_bytes))
                        raise http.ReadError("the reply is too large")
                    yield chunk
            except http.TransportError as error:
                if self._is_reply:
                    self._session.note(CallFailed(_said(error), "transport", lost=True))
                raise

        async def aclose(self) -> None:
            await self._inner.aclose()

    class Watched(http.AsyncBaseTransport):
        def __init__(self, session: SdkSession) -> None:
            self._session, self._inner = session, http.AsyncHTTPTransport()

        async def handle_async_request(self, request: Any) -> Any:
            try:
                response = await self._inner.handle_async_request(request)
            except http.TransportError as error:
                if request.method == "POST":
                    reached = not isinstance(error, http.ConnectError)
                    self._session.note(CallFailed(_said(error), "transport", delivered=reached, lost=True))
                raise
            problem = _of_status(self._session, request, response.status_code)
            if problem is not None:
                self._session.note(problem)
            response.stream = Counted(response.stream, self._session, request.method == "POST")
            return response

        async def aclose(self) -> None:
            await self._inner.aclose()

    return Watched


def _of_status(session: SdkSession, request: Any, status: int) -> CallFailed | None:
    """The failure that a status alone means, of which the SDK's lines make different things."""
    if status in (401, 403):
        said = f"{request.url} refuses this token (HTTP {status})"
        problem = CallFailed(said, "environment", delivered=False, lost=True)
        problem.retryable = False
        return problem
    if request.method != "POST" or not session.is_ready:
        return None
    if status == 404 and "mcp-session-id" in request.headers:
        said = f"{request.url} knows this session no more (HTTP 404)"
        return CallFailed(said, "environment", delivered=False, lost=True)
    return CallFailed(f"{request.url} answers HTTP {status}", "transport", lost=True) if status >= 500 else None


def _wire(found: Any) -> dict[str, Any]:
    """A value of the SDK's as it came."""
    told: dict[str, Any] = found.model_dump(mode="json", by_alias=True, exclude_none=True)
    return told


def too_large(named: str, limit: int) -> CallFailed:
    """The failure of a reply beyond the limit; the SDK's session does not survive it."""
    return CallFailed(f"{named} answered with more than {limit} bytes", "too_large", lost=True)


async def _first_of(*futures: asyncio.Future[Any], seconds: float) -> None:
    await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def _cancel_with(answer: asyncio.Future[Any], task: asyncio.Task[None]) -> None:
    """Nobody waits for the answer any more: the work on it ends."""
    answer.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)


def _first(raised: BaseException) -> CallFailed | None:
    """A failure of ours in a group of the SDK's."""
    if isinstance(raised, CallFailed):
        return raised
    for each in getattr(raised, "exceptions", ()):
        if (found := _first(each)) is not None:
            return found
    return None


def _said(raised: BaseException) -> str:
    while getattr(raised, "exceptions", ()):
        raised = raised.exceptions[0]  # type: ignore[attr-defined]
    return f"{type(raised).__name__}: {raised}" if str(raised) else type(raised).__name__
