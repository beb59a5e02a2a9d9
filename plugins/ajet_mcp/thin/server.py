"""HttpServer: an HTTP server with its connections, shared by the sessions of this process.

Invariants: a reply longer than the limit is not read to its end. A request is sent once, and its failure reports
whether the request was sent. A broken connection raises `CallFailedError` immediately.
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
    decoded,
    encoded,
    expects_reply,
    is_answer,
    load_reply,
    refusal,
)

KEEPALIVE_S = 4.0
"""Seconds to keep an idle connection: less than servers do (uvicorn: 5), so that a closing connection is not reused."""
CONNECT_S = 5.0
"""Timeout of a connection; a machine that has disappeared sends no refusal."""
REFUSAL_S = 2.0
"""Seconds granted to a server to accept the refusal of its request."""
DRAIN_S = 0.2
MOST_REDIRECTS = 5
SESSION = "Mcp-Session-Id"
_PLAIN = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
_servers: dict[tuple[Any, ...], HttpServer] = process_local({})


class HttpServer:
    """One HTTP server and its connection pool, shared by all sessions of this process."""

    def __init__(self, server: Server) -> None:
        self.name, self.url = server.name, server.url
        self.connections = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            headers={**_PLAIN, **server.headers, "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=not is_loopback(urlsplit(server.url).hostname),
            auto_decompress=False,  # compression is not requested, and the decompressed size has no limit
        )
        self.stateless: bool | None = None
        """True if the server supports the stateless revision; None before the first request."""
        self.asking = asyncio.Lock()
        self.episodes = ""
        """The address for new episodes; "" for a server without episodes."""
        self.spread = False
        """True for several servers behind the address."""

    @classmethod
    def of(cls, server: Server) -> HttpServer:
        """Return the object of this server in this process. Used on the tools' event loop only."""
        if not _servers:
            close_at_exit(close_all)
        if server.key not in _servers:
            _servers[server.key] = cls(server)
        return _servers[server.key]

    async def send(
        self, message: Mapping[str, Any], headers: Mapping[str, str], *, seconds: float, limit: int, url: str = ""
    ) -> tuple[dict[str, Any] | None, str]:
        """Send a JSON-RPC message and return (reply or None, session id or "").

        Args:
            seconds: deadline of the reply.
            limit: largest reply in bytes.
            url: address of an episode; "" for the server's own address.

        Raises:
            CallFailedError: the message failed on its way.
        """
        deadline = asyncio.get_running_loop().time() + seconds
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
                    answer = await self._read_answer(reply, message, headers, limit, deadline, of_episode=bool(url))
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
        """Send a plain HTTP request and return (status, headers, parsed JSON or None).

        Args:
            seconds: deadline of the reply.
            limit: largest reply in bytes.
            body: JSON value of the request; None for an empty body.

        Raises:
            CallFailedError: the request failed on its way, or the server refused the token.
        """
        with self._convert_failures(seconds):
            async with self.connections.request(
                method,
                url,
                data=None if body is None else encoded(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S),
                allow_redirects=False,
            ) as reply:
                self._raise_for_token(reply.status)
                reply_body = await self._read_body(reply, limit)
                try:
                    return reply.status, reply.headers, load_reply(reply_body)
                except (ValueError, RecursionError):
                    return reply.status, reply.headers, None

    async def leave(self, url: str, *, seconds: float, headers: Mapping[str, str] | None = None) -> None:
        """Send the DELETE that ends a session or an episode, and ignore its failure."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        # An unreachable server has lost its state anyway.
        with suppress(CallFailedError), self._convert_failures(seconds):
            async with self.connections.delete(url, headers=headers, timeout=timeout, allow_redirects=False):
                pass

    def own(self, path: str) -> str:
        """Return the URL of a path, and check that it stays on this server.

        Raises:
            CallFailedError: the address is on another server.
        """
        try:
            address = urljoin(self.url, path)
            is_own_server = parse_origin(address) == parse_origin(self.url)
        except ValueError as error:
            raise self.failed(f"names {path!r}, which is not a URL: {error}", "environment", delivered=False) from error
        if not is_own_server:
            raise self.failed(f"names another server, {address}", "environment", delivered=False)
        return address

    def resolve_sibling(self, url: str) -> str:
        """Return the URL of an episode at another process of the same environment, after a check.

        Raises:
            CallFailedError: the address has another scheme or port.
        """
        try:
            other_address, own_address = urlsplit(url), urlsplit(self.url)
            is_sibling = (other_address.scheme, other_address.port) == (
                own_address.scheme,
                own_address.port,
            ) and other_address.hostname is not None
        except ValueError as error:
            raise self.failed(f"names {url!r}, which is not a URL: {error}", "environment", delivered=False) from error
        if not is_sibling:
            reason = f"names another server, {url}, of another scheme or port"
            raise self.failed(reason, "environment", delivered=False)
        return url

    @contextmanager
    def _convert_failures(self, seconds: float) -> Iterator[None]:
        """Convert network errors within the block to CallFailedError."""
        try:
            yield
        except aiohttp.ConnectionTimeoutError:
            problem = f"cannot be reached: no connection within {CONNECT_S:g} s"
            raise self.failed(problem, "transport", delivered=False) from None
        except TimeoutError:
            raise self.failed(f"did not answer within {seconds:.3g} s", "timeout") from None
        except aiohttp.ClientConnectorError as error:
            raise self.failed(f"cannot be reached: {error}", "transport", delivered=False) from error
        except (aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise self.failed(f"broke the connection: {reason}", "transport") from error
        except ValueError as error:  # an invalid address or header field
            raise self.failed(f"sent an invalid address or header: {error}", "environment") from error

    def _raise_for_token(self, status: int) -> None:
        """Raise a CallFailedError without retry if the HTTP status says that the token is missing or wrong."""
        if status in (401, 403):
            problem = self.failed(
                f"refuses the token (HTTP status {status})", "environment", delivered=False, lost=True
            )
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
        """Return the JSON-RPC reply in an HTTP response, from its body or its event stream; None for a notification.

        Args:
            message: the message that was sent.
            headers: headers of the request, repeated when a request of the server is refused.
            limit: largest reply in bytes.
            until: deadline in seconds of the event loop's clock.
            of_episode: True if the request went to an episode's address.

        Raises:
            CallFailedError: the response contains no reply, or the session or episode is gone.
        """
        if "id" not in message and 200 <= reply.status < 300:
            return None
        if reply.status == 404 and SESSION in headers:
            raise self.failed("no longer knows this session", "environment", delivered=False, lost=True)
        self._raise_for_token(reply.status)
        if reply.content_type == "text/event-stream" and reply.status == 200:
            return await self._read_stream(reply, message, headers, limit, until)
        rpc_message = decoded(await self._read_body(reply, limit))
        if rpc_message is not None and is_answer(rpc_message, message.get("id", 0)):
            return rpc_message
        if reply.status == 404 and of_episode:
            raise self.failed("no longer knows this episode", "environment", delivered=False, lost=True)
        is_refused = reply.status in (429, 503)
        raise self.failed(
            f"answered with HTTP status {reply.status} and no JSON-RPC message", "transport", delivered=not is_refused
        )

    async def _read_body(self, reply: aiohttp.ClientResponse, limit: int) -> bytes:
        """Return a response's body. Raises CallFailedError, and closes the connection, beyond `limit` bytes."""
        length = reply.content_length
        if length is not None and length <= limit:
            return await reply.read()
        body = bytearray()
        while length is None and (chunk := await reply.content.readany()):
            body += chunk
            if len(body) > limit:
                break
        else:
            if length is None:
                return bytes(body)
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
        """Read an event stream until the reply to `message`, and return the reply.

        Requests of the server on the stream are refused, and other messages are ignored.

        Raises:
            CallFailedError: the stream ends without a reply, or has more than `limit` bytes.
        """
        events, received = EventStream(), 0
        while chunk := await reply.content.readany():
            received += len(chunk)
            if received > limit:
                reply.close()
                raise too_large(self.name, limit)
            for _, data in events.take(chunk):
                frame = decoded(data)
                if frame is None:
                    continue
                if expects_reply(frame):
                    await self._refuse_request(reply, frame, headers, until)
                elif is_answer(frame, message["id"]):
                    await _drain_reply(reply)
                    return frame
        for _, data in events.finish():
            if (frame := decoded(data)) is not None and is_answer(frame, message["id"]):
                return frame
        raise self.failed("ended its answer early", "transport")

    async def _refuse_request(
        self, reply: aiohttp.ClientResponse, frame: Mapping[str, Any], headers: Mapping[str, str], until: float
    ) -> None:
        """Answer a request of the server on its stream with a refusal, before `until`.

        A server that does not accept the refusal delays no call.
        """
        remaining = until - asyncio.get_running_loop().time()
        if remaining <= 0:  # buffered frames escape the connection's timeout
            raise TimeoutError
        timeout = aiohttp.ClientTimeout(total=min(remaining, REFUSAL_S))
        with suppress(aiohttp.ClientError, OSError, asyncio.TimeoutError):
            async with self.connections.post(
                reply.url, data=encoded(refusal(frame)), headers=headers, timeout=timeout, allow_redirects=False
            ):
                pass

    def follow_redirect(self, reply: aiohttp.ClientResponse) -> bool:
        """Return True after a redirect within this server, and use the new address from then on.

        Raises:
            CallFailedError: the redirect leads to another server, which would receive the headers.
            ValueError: the target is not an address.
        """
        location = reply.headers.get("Location")
        if reply.status not in (301, 302, 307, 308) or not location:
            return False
        address = urljoin(self.url, location)
        if parse_origin(address) != parse_origin(self.url):
            raise self.failed(f"redirects to another server, {address}", "environment", delivered=False)
        self.url = address
        return True

    def failed(self, what: str, kind: ToolError, *, delivered: bool = True, lost: bool = False) -> CallFailedError:
        """Build the error for a failed request.

        Args:
            what: rest of the message after the server's name.
            kind: kind of the failure.
            delivered: False if the request certainly did not reach the server.
            lost: True if the session's state on the server is lost.
        """
        return CallFailedError(f"the MCP server {self.name} ({self.url}) {what}", kind, delivered=delivered, lost=lost)


def too_large(name: str, limit: int) -> CallFailedError:
    """Build the error for a reply longer than the limit."""
    return CallFailedError(f"the MCP server {name} answered with more than {limit} bytes", "too_large")


async def close_all() -> None:
    """Close the connections of all servers."""
    servers = list(_servers.values())
    _servers.clear()
    for server in servers:
        await server.connections.close()


async def _drain_reply(reply: aiohttp.ClientResponse) -> None:
    """Read the rest of a stream after its reply for a short time, so that the connection can be reused."""

    async def read() -> None:
        while await reply.content.readany():
            pass

    try:
        await asyncio.wait_for(read(), DRAIN_S)
    except (TimeoutError, aiohttp.ClientError):
        reply.close()
