"""HttpServer: a server of streamable HTTP as this process knows it, with its connections.

Invariants: a reply longer than the limit is left unread; a request is sent once, and its failure says whether it was
sent. A server whose connections break is a `CallFailedError` at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp

from ajet.environment.loop import close_at_exit, process_local
from ajet.schema.addresses import is_loopback, parse_origin
from ajet.schema.tool_use import ToolError
from ajet_mcp.contract import CallFailedError
from ajet_mcp.servers import Server
from ajet_mcp.thin.messages import (
    EventStream,
    asks,
    decoded,
    encoded,
    is_answer,
    load_reply,
    refusal,
)

KEPT_S = 4.0
"""Seconds an idle connection is kept: less than servers do (uvicorn: 5), so that none is used as it is closed."""
CONNECT_S = 5.0
"""In which a machine that is there takes a connection: one that has vanished says nothing at all."""
REFUSAL_S = 2.0
"""In which a server must take that what it asked of its client is refused."""
DRAIN_S = 0.2
MOST_REDIRECTS = 5
SESSION = "Mcp-Session-Id"
_PLAIN = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
_servers: dict[tuple[Any, ...], HttpServer] = process_local({})


class HttpServer:
    """A server as this process knows it."""

    def __init__(self, server: Server) -> None:
        self.name, self.url = server.name, server.url
        self.connections = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S),
            headers={**_PLAIN, **server.headers, "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=not is_loopback(urlsplit(server.url).hostname),
            auto_decompress=False,  # none is asked for, and what it would grow to has no limit
        )
        self.stateless: bool | None = None
        """Whether it speaks the stateless revision; None: not asked yet."""
        self.asking = asyncio.Lock()
        self.episodes = ""
        """The address where it gives episodes; "" where it has none."""
        self.spread = False
        """Whether it is one of several behind its address."""

    @classmethod
    def of(cls, server: Server) -> HttpServer:
        """This process's. On the tools' loop."""
        if not _servers:
            close_at_exit(close_all)
        if server.key not in _servers:
            _servers[server.key] = cls(server)
        return _servers[server.key]

    async def send(
        self, message: Mapping[str, Any], headers: Mapping[str, str], *, seconds: float, limit: int, url: str = ""
    ) -> tuple[dict[str, Any] | None, str]:
        """(the answer; None where none was owed, the session's name if it gave one). `url`: an episode's, where it is
        not the server's. Raises CallFailedError."""
        until = asyncio.get_running_loop().time() + seconds
        with self._convert_failures(seconds):
            for _ in range(MOST_REDIRECTS + 1):
                async with self.connections.post(
                    url or self.url,
                    data=encoded(message),
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S),
                    allow_redirects=False,
                ) as reply:
                    if not url and self.follow_redirect(reply):
                        continue
                    answer = await self._read_answer(reply, message, headers, limit, until, of_episode=bool(url))
                    return answer, reply.headers.get(SESSION, "")
            raise self.failed(f"redirects more than {MOST_REDIRECTS} times", "environment", delivered=False)

    async def exchange(
        self,
        method: str,
        url: str,
        *,
        seconds: float,
        limit: int,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], Any]:
        """A request that is no JSON-RPC: (status, headers, the answer's JSON; None where it is none). Raises
        CallFailedError."""
        with self._convert_failures(seconds):
            async with self.connections.request(
                method,
                url,
                data=None if body is None else encoded(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S),
                allow_redirects=False,
            ) as reply:
                self._refuse_token(reply.status)
                found = await self._read_body(reply, limit)
                try:
                    return reply.status, reply.headers, load_reply(found)
                except (ValueError, RecursionError):
                    return reply.status, reply.headers, None

    async def leave(self, url: str, *, seconds: float, headers: Mapping[str, str] | None = None) -> None:
        """Tell it that what has this address is over."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        with suppress(CallFailedError), self._convert_failures(seconds):  # it is gone: so is what it kept
            async with self.connections.delete(url, headers=headers, timeout=timeout, allow_redirects=False):
                pass

    def own(self, path: str) -> str:
        """An address on this server. Raises CallFailedError for one on another."""
        try:
            there = urljoin(self.url, path)
            same = parse_origin(there) == parse_origin(self.url)
        except ValueError as error:
            raise self.failed(
                f"names {path!r}, which is no address: {error}", "environment", delivered=False
            ) from error
        if not same:
            raise self.failed(f"names another server, {there}", "environment", delivered=False)
        return there

    def beside(self, url: str) -> str:
        """The address of one of those behind this one. Raises CallFailedError."""
        try:
            there, here = urlsplit(url), urlsplit(self.url)
            same = (there.scheme, there.port) == (here.scheme, here.port) and there.hostname is not None
        except ValueError as error:
            raise self.failed(f"names {url!r}, which is no address: {error}", "environment", delivered=False) from error
        if not same:
            said = f"names another server, {url}, of another scheme or port"
            raise self.failed(said, "environment", delivered=False)
        return url

    @contextmanager
    def _convert_failures(self, seconds: float) -> Iterator[None]:
        """Within the block, what goes wrong on the way becomes CallFailedError."""
        try:
            yield
        except aiohttp.ConnectionTimeoutError:
            problem = f"cannot be reached: no connection within {CONNECT_S:g} s"
            raise self.failed(problem, "transport", delivered=False) from None
        except asyncio.TimeoutError:
            raise self.failed(f"did not answer within {seconds:.3g} s", "timeout") from None
        except aiohttp.ClientConnectorError as error:
            raise self.failed(f"cannot be reached: {error}", "transport", delivered=False) from error
        except (aiohttp.ClientError, OSError) as error:
            said = str(error) or type(error).__name__
            raise self.failed(f"broke the connection: {said}", "transport") from error
        except ValueError as error:  # an address or a header field that no request can carry
            raise self.failed(f"sent what cannot be used: {error}", "environment") from error

    def _refuse_token(self, status: int) -> None:
        if status in (401, 403):
            problem = self.failed(f"refuses this token (HTTP {status})", "environment", delivered=False, lost=True)
            problem.retryable = False
            raise problem

    async def _read_answer(
        self,
        reply: aiohttp.ClientResponse,
        message: Mapping[str, Any],
        headers: Mapping[str, str],
        limit: int,
        until: float,
        *,
        of_episode: bool,
    ) -> dict[str, Any] | None:
        if "id" not in message and 200 <= reply.status < 300:
            return None
        if reply.status == 404 and SESSION in headers:
            raise self.failed("knows this session no more", "environment", delivered=False, lost=True)
        self._refuse_token(reply.status)
        if reply.content_type == "text/event-stream" and reply.status == 200:
            return await self._read_stream(reply, message, headers, limit, until)
        answer = decoded(await self._read_body(reply, limit))
        if answer is not None and is_answer(answer, message.get("id", 0)):
            return answer
        if reply.status == 404 and of_episode:
            raise self.failed("knows this episode no more", "environment", delivered=False, lost=True)
        refused = reply.status in (429, 503)
        raise self.failed(f"answered HTTP {reply.status} and no JSON-RPC", "transport", delivered=not refused)

    async def _read_body(self, reply: aiohttp.ClientResponse, limit: int) -> bytes:
        length = reply.content_length
        if length is not None and length <= limit:
            return await reply.read()
        found = bytearray()
        while length is None and (chunk := await reply.content.readany()):
            found += chunk
            if len(found) > limit:
                break
        else:
            if length is None:
                return bytes(found)
        reply.close()
        raise too_large(self.name, limit)

    async def _read_stream(
        self,
        reply: aiohttp.ClientResponse,
        message: Mapping[str, Any],
        headers: Mapping[str, str],
        limit: int,
        until: float,
    ) -> dict[str, Any]:
        events, taken = EventStream(), 0
        while chunk := await reply.content.readany():
            taken += len(chunk)
            if taken > limit:
                reply.close()
                raise too_large(self.name, limit)
            for _, data in events.take(chunk):
                frame = decoded(data)
                if frame is None:
                    continue
                if asks(frame):
                    await self._refuse_request(reply, frame, headers, until)
                elif is_answer(frame, message["id"]):
                    await _drain_reply(reply)
                    return frame
        for _, data in events.finish():
            if (frame := decoded(data)) is not None and is_answer(frame, message["id"]):
                return frame
        raise self.failed("ended its answer in the middle", "transport")

    async def _refuse_request(
        self, reply: aiohttp.ClientResponse, frame: Mapping[str, Any], headers: Mapping[str, str], until: float
    ) -> None:
        """Refuse the server's own request where the call went; a server that does not take it holds up no call."""
        left = until - asyncio.get_running_loop().time()
        if left <= 0:  # what is buffered passes by the timeout of the connection
            raise asyncio.TimeoutError
        timeout = aiohttp.ClientTimeout(total=min(left, REFUSAL_S))
        with suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError):
            async with self.connections.post(
                reply.url, data=encoded(refusal(frame)), headers=headers, timeout=timeout, allow_redirects=False
            ):
                pass

    def follow_redirect(self, reply: aiohttp.ClientResponse) -> bool:
        """True for a redirect within this server, whose new address is used from now on. Raises CallFailedError for one
        to another server, which would be sent our headers, and ValueError for no address."""
        location = reply.headers.get("Location")
        if reply.status not in (301, 302, 307, 308) or not location:
            return False
        there = urljoin(self.url, location)
        if parse_origin(there) != parse_origin(self.url):
            raise self.failed(f"redirects to another server, {there}", "environment", delivered=False)
        self.url = there
        return True

    def failed(self, what: str, kind: ToolError, *, delivered: bool = True, lost: bool = False) -> CallFailedError:
        """The failure of what was asked of it."""
        return CallFailedError(f"the MCP server {self.name} ({self.url}) {what}", kind, delivered=delivered, lost=lost)


def too_large(name: str, limit: int) -> CallFailedError:
    """The failure of a reply beyond the limit."""
    return CallFailedError(f"the MCP server {name} answered with more than {limit} bytes", "too_large")


async def close_all() -> None:
    """Close all servers' connections."""
    found = list(_servers.values())
    _servers.clear()
    for each in found:
        await each.connections.close()


async def _drain_reply(reply: aiohttp.ClientResponse) -> None:
    """Read the end of a stream that has answered, so that its connection can serve again; not for long."""

    async def read() -> None:
        while await reply.content.readany():
            pass

    try:
        await asyncio.wait_for(read(), DRAIN_S)
    except (asyncio.TimeoutError, aiohttp.ClientError):
        reply.close()
