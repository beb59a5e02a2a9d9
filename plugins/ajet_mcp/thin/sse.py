"""SseChannel: the older SSE transport of MCP, where one event stream carries the replies to POST requests.

Invariant: the address that the server names for POST requests is on the server itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

import aiohttp

from ajet.schema.addresses import parse_origin
from ajet.schema.tool_use import ToolError
from ajet_mcp.contract import CallFailedError
from ajet_mcp.thin.answers import Answers
from ajet_mcp.thin.messages import HELLO, EventStream, decoded, encoded, notification
from ajet_mcp.thin.server import MOST_REDIRECTS, HttpServer, too_large


class SseChannel:
    """The transport of one session over an event stream and POST requests."""

    def __init__(self, server: HttpServer, limit: int) -> None:
        self._server, self._limit = server, limit
        self._answers = Answers(server.name, self._post_message)
        self._read_task: asyncio.Task[None] | None = None
        self._address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._seconds = 0.0

    async def start(self, seconds: float) -> None:
        """Open the stream, receive the POST address, and begin the session.

        Raises:
            CallFailedError: the stream failed.
            RpcError: the server answered with an error.
        """
        self._seconds = seconds
        self._read_task = asyncio.create_task(self._read_stream())
        await asyncio.shield(self._address)
        await self._answers.request("initialize", HELLO, seconds)
        await self._post_message(notification("notifications/initialized"))

    @property
    def ended(self) -> bool:
        """True if the stream has ended."""
        return self._answers.over is not None

    async def request(
        self, method: str, params: Mapping[str, Any], seconds: float, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            CallFailedError: the request failed on its way.
            RpcError: the server answered with an error.
        """
        return await self._answers.request(method, params, seconds)

    async def close(self, seconds: float) -> None:
        """Close the stream within `seconds`."""
        self._answers.end(CallFailedError("this session is closed", "environment", delivered=False, lost=True))
        if self._read_task is not None:
            self._read_task.cancel()
            await asyncio.wait([self._read_task], timeout=seconds)

    async def _post_message(self, message: Mapping[str, Any]) -> None:
        """Send a message to the POST address; its reply arrives on the event stream.

        Raises:
            CallFailedError: the message was not accepted.
        """
        address = await asyncio.shield(self._address)
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        try:
            async with self._server.connections.post(
                address, data=encoded(message), timeout=timeout, allow_redirects=False
            ) as reply:
                if not 200 <= reply.status < 300:
                    raise self._build_failure(f"answered with HTTP status {reply.status}", delivered=False)
        except TimeoutError:  # it comes first, since it is an OSError from Python 3.11 on
            raise self._build_failure(f"accepted no message within {self._seconds:g} s", "timeout") from None
        except aiohttp.ClientConnectorError as error:
            raise self._build_failure(f"cannot be reached: {error}", delivered=False) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._build_failure(f"broke the connection: {error}") from error

    async def _read_stream(self) -> None:
        """Open the event stream, and pass its messages to the waiting requests until it ends.

        The end of the stream, for any reason, fails all waiting and later requests.
        """
        problem = self._build_failure("ended its stream")
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._seconds)
            headers = {"Accept": "text/event-stream"}
            for _ in range(MOST_REDIRECTS + 1):
                async with self._server.connections.get(
                    self._server.url, headers=headers, timeout=timeout, allow_redirects=False
                ) as reply:
                    if self._server.follow_redirect(reply):
                        continue
                    if reply.status == 200 and reply.content_type == "text/event-stream":
                        await self._read_events(reply)
                        return
                    problem = self._build_failure(f"sent no event stream (HTTP {reply.status})", delivered=False)
                    return
            problem = self._build_failure(f"redirects more than {MOST_REDIRECTS} times", delivered=False)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            problem = self._build_failure(f"broke the stream: {error}", delivered=self._address.done())
        except CallFailedError as failed:
            problem = failed
        finally:
            self._answers.end(problem)
            if not self._address.done():
                self._address.set_exception(problem)
                self._address.exception()  # marks the exception as retrieved, even without a waiter

    async def _read_events(self, reply: aiohttp.ClientResponse) -> None:
        """Handle the events of the stream. Raises CallFailedError for one event of more than the limit's bytes."""
        events, received = EventStream(), 0
        while chunk := await reply.content.readany():
            received += len(chunk)
            for event, data in events.take(chunk):
                received = 0  # the limit holds for the bytes of one event
                self._handle_event(event, data)
            if received > self._limit:
                raise too_large(self._server.name, self._limit)
        for event, data in events.finish():
            self._handle_event(event, data)

    def _handle_event(self, event: str, data: str) -> None:
        """Take the POST address from the event `endpoint`, or pass a message to the waiting requests."""
        if event == "endpoint" and not self._address.done():
            self._address.set_result(self._resolve_endpoint(data))
        elif event == "message" and (message := decoded(data)) is not None:
            self._answers.take(message)

    def _resolve_endpoint(self, data: str) -> str:
        """Return the POST address as a URL. Raises CallFailedError if it is on another server."""
        try:
            address = urljoin(self._server.url, data)
            is_own_server = parse_origin(address) == parse_origin(self._server.url)
        except ValueError as error:
            raise self._build_failure(f"names {data!r}, which is not a URL: {error}", delivered=False) from error
        if not is_own_server:
            raise self._build_failure(f"names another server for its messages, {address}", delivered=False)
        return address

    def _build_failure(self, problem: str, kind: ToolError = "transport", *, delivered: bool = True) -> CallFailedError:
        """Build the error of a failed connection, with which the session is lost.

        `problem` continues the server's name.
        """
        name, url = self._server.name, self._server.url
        return CallFailedError(f"the MCP server {name} ({url}) {problem}", kind, delivered=delivered, lost=True)
