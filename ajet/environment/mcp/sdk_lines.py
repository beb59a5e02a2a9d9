"""The two lines of the `mcp` package, 1.x and 2.x, where they differ for a client.

Invariant: nothing else asks which line is installed; both are imported when this is first used, and neither before.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal

from ajet.schema.errors import MissingExtra

Meaning = Literal["", "terminated", "timed_out", "closed"]
_ONE: Mapping[int, Meaning] = {32600: "terminated", 408: "timed_out", -32000: "closed"}
_TWO: Mapping[int, Meaning] = {-32001: "timed_out", -32000: "closed"}
_TERMINATED = (-32600, "Session terminated")
"""Of the second line, which uses the code for other things, too."""


class SdkLine:
    """The one that is installed."""

    def __init__(self) -> None:
        """Imports it, which takes a second. Raises MissingExtra without it."""
        try:
            self._package: Any = import_module("mcp")
        except ImportError as error:
            raise MissingExtra("mcp", "mcp", needed_for="environment.mcp_client: sdk") from error
        self._second = int(version("mcp").partition(".")[0]) >= 2
        self.http: Any = import_module("httpx2" if self._second else "httpx")
        """Its HTTP library."""
        self.error: type[Exception] = self._package.MCPError if self._second else self._package.McpError

    async def begun(self, stack: AsyncExitStack, transport: AbstractAsyncContextManager[tuple[Any, Any]]) -> Any:
        """A session that has found out its server's revision: the second line knows both eras, the first sessions."""
        if self._second:
            client = self._package.Client(transport, mode="auto", cache=None)
            return (await stack.enter_async_context(client)).session
        read, write = await stack.enter_async_context(transport)
        session = await stack.enter_async_context(self._package.ClientSession(read, write))
        await session.initialize()
        return session

    def streamable_http(self, url: str, client: Any) -> AbstractAsyncContextManager[Any]:
        """The SDK's transport, whose first two values are the streams. The longest reply is ajet's to bound."""
        more = {"max_sse_event_size": None} if self._second else {}
        found: AbstractAsyncContextManager[Any] = import_module("mcp.client.streamable_http").streamable_http_client(
            url, http_client=client, **more
        )
        return found

    def sse(self, url: str, client_factory: Any) -> AbstractAsyncContextManager[Any]:
        """The older transport over HTTP."""
        found: AbstractAsyncContextManager[Any] = import_module("mcp.client.sse").sse_client(
            url, httpx_client_factory=client_factory
        )
        return found

    def message(self, line: bytes) -> Any:
        """A line of a pipe, for its session. Raises ValueError for what is no JSON-RPC."""
        from pydantic import TypeAdapter

        made = self._package.types.JSONRPCMessage
        return import_module("mcp.shared.message").SessionMessage(TypeAdapter(made).validate_json(line))

    def page(self, cursor: str | None) -> Any:
        """The parameters of a list's next page; None for the first."""
        return None if cursor is None else self._package.types.PaginatedRequestParams(cursor=cursor)

    def seconds(self, seconds: float) -> Any:
        """A time limit."""
        return seconds if self._second else timedelta(seconds=seconds)

    def meaning(self, error: Any) -> Meaning:
        """The meaning of one of the SDK's own errors; "": the server's words."""
        code, message = error.error.code, error.error.message
        if self._second and (code, message) == _TERMINATED:
            return "terminated"
        return (_TWO if self._second else _ONE).get(code, "")


@lru_cache(maxsize=1)
def sdk_line() -> SdkLine:
    """The SDK that is installed, by its line of versions. Raises MissingExtra."""
    return SdkLine()
