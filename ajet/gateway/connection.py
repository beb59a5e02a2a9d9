"""Connection: the connection of one client, parsed by uvicorn, with the server's limits.

Invariant: bytes without effect (an endless header, a trailer, an extension of a chunk) are bounded. So are the seconds
in which no bytes arrive, or no part of a reply is read. Errors are answered in JSON. Parts of a reply add no cost.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.server import ServerState

from ajet.gateway.asgi import LOST, WATCH, Leave
from ajet.gateway.limits import PEER, ServerCounters

_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class ConnectionOwner(Protocol):
    """What a connection needs of its listener. A protocol, because the listener's module imports this one."""

    shared: ServerCounters

    def forget_stranger(self, connection: Connection) -> None:
        """Stop counting the connection as a stranger, that is, as one that has shown no valid key yet."""

    def left(self, connection: Connection) -> None:
        """Remove a closed connection from all counts."""


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """The connection of one client. A client that closes without having read all data resets the connection."""

    def __init__(
        self,
        acceptor: ConnectionOwner,
        config: Config,
        state: ServerState,
        loop: asyncio.AbstractEventLoop,
        address: str,
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={PEER: self, WATCH: self.watch}, _loop=loop)
        self.parser = PlainParser(self)
        self.acceptor = acceptor
        self.shared = acceptor.shared
        self.address = address
        self._limits = acceptor.shared.limits
        self._has_sent_key = False
        self._on_disconnect: Leave | None = None
        self.guessed = False
        """True if the client has shown a wrong key, and no valid one."""
        self._received_at = loop.time()
        self._head_since: float | None = self._received_at
        """Loop time at which the head of the current request began; `None` while no head is expected."""
        self._bytes_without_progress = 0
        """Bytes since the last byte with an effect."""
        self._too_much = False
        self._unread_bytes, self._unread_since = 0, self._received_at
        """Bytes not read by the client at the last check, and the loop time of the last change of this number."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wrap the transport of a new connection in `HeldHead`."""
        super().connection_made(HeldHead(transport, self.loop))

    def welcome(self) -> None:
        """Note that the client has shown a valid key."""
        if not self._has_sent_key:
            self._has_sent_key, self.guessed = True, False
            self.acceptor.forget_stranger(self)

    def watch(self, leave: Leave | None) -> None:
        """Call `leave` when the client disconnects. None ends this.

        A connection answers one request at a time, so one function is enough.
        """
        self._on_disconnect = leave
        if leave is not None and not self.transport.is_closing():
            self.flow.resume_reading()  # the end of the connection must be read, too
        elif leave is not None:  # the client has left already
            self.loop.call_soon(leave)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after a closed connection. If the client reset it, report that the last reply may not have
        been read.
        """
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # after a reset uvicorn's timer would keep this object alive
        self.acceptor.left(self)
        leave, self._on_disconnect = self._on_disconnect, None
        if leave is not None:
            leave()
        if isinstance(exc, ConnectionResetError) and self.cycle is not None:
            on_lost = self.cycle.scope["state"].pop(LOST, None)
            if on_lost is not None:
                on_lost()

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the parser. Refuse a request with too many bytes without effect, as in an endless header."""
        self._received_at = self.loop.time()
        cycle = self.cycle
        if self._head_since is None and (cycle is None or cycle.response_complete):
            self._head_since = self._received_at
        self._bytes_without_progress += len(data)
        super().data_received(data)
        if self.cycle is not cycle:
            self._head_since = None
        if (
            self._bytes_without_progress > self._limits.head_bytes
            and hasattr(self, "parser")
            and not self.transport.is_closing()
        ):
            self._refuse_request(431, "The request's headers are too long.")

    def on_headers_complete(self) -> None:
        """Start the request, or refuse a head that is too large."""
        if len(self.headers) > self._limits.headers or self._head_size() > self._limits.head_bytes:
            self._too_much = True
            raise ValueError("the request has too many headers")  # the parser stops and calls send_400_response
        self._bytes_without_progress = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count the bytes of the body as progress."""
        self._bytes_without_progress = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request with a JSON error instead of uvicorn's text."""
        if self._too_much:
            self._refuse_request(431, "The request's headers are too many or too long.")
        else:
            self._refuse_request(400, msg)

    def close_overdue(self, now: float) -> None:
        """Close the connection if its client exceeds a time limit for the head, the body or reading the reply.

        Args:
            now: Time of the event loop.
        """
        cycle, unread = self.cycle, self.transport.get_write_buffer_size()
        if unread != self._unread_bytes:
            self._unread_bytes, self._unread_since = unread, now
        elif unread and now - self._unread_since > self._limits.unread_seconds:
            self.transport.abort()
            return
        if self._head_since is not None:
            if now - self._head_since <= self._limits.head_seconds:
                return
            if cycle is None and not self._bytes_without_progress:  # the client never sent a request
                self.transport.abort()
            else:
                self._refuse_request(408, "The server did not receive the complete request in time.")
        elif cycle is not None and cycle.more_body and not cycle.response_complete:
            if self.flow.read_paused:  # the server is slow, not the client
                self._received_at = now
            elif now - self._received_at > self._limits.body_seconds:
                self.transport.abort()

    @property
    def begun(self) -> bool:
        """True if the head of the present reply was sent, so the status cannot change any more."""
        return self.cycle is not None and self.cycle.response_started

    @property
    def busy(self) -> bool:
        """True if a reply is in progress, so the connection must not be closed in favour of another.

        A reply to a wrong key does not count.
        """
        cycle = self.cycle
        return not self.guessed and cycle is not None and not cycle.response_complete and not cycle.more_body

    def _head_size(self) -> int:
        """Return the bytes of the request's address and headers, or 0 if they cannot exceed the limit."""
        if self._bytes_without_progress <= self._limits.head_bytes:
            return 0  # the complete head came in one piece with these bytes
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse_request(self, status: int, message: str) -> None:
        """Write a complete HTTP error with a JSON body, and close the connection. No ASGI request exists yet."""
        error: dict[str, Any] = {"message": message, "type": "invalid_request_error", "code": None, "param": None}
        body = json.dumps({"error": error}).encode()
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()


# PlainParser: httptools' request parser for a server that supports only HTTP/1.1.
# httptools stops behind the head of a request that offers another protocol and drops the body. A JDK client or
# `curl --http2` offers h2c with every request. A server may ignore the offer (RFC 9110, 7.8). Invariant: a request
# with an offer is parsed as if without its `Upgrade` header, however its bytes are cut.
_OFFER = {b"upgrade", b"http2-settings"}
"""Header names, and tokens of `Connection`, of an upgrade offer."""


class PlainParser:
    """Parses the requests of one connection, ignoring offers to switch to another protocol (h2c).

    Its methods are those of `httptools.HttpRequestParser`.
    """

    def __init__(self, listener: Connection) -> None:
        self._listener = listener
        self.on_message_begin, self.on_url = listener.on_message_begin, listener.on_url
        self.on_header, self.on_body = listener.on_header, listener.on_body
        self._parser = self._build_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse the next bytes. Raises httptools.HttpParserError for invalid HTTP."""
        unparsed_data = memoryview(data)
        while True:
            try:
                self._parser.feed_data(unparsed_data)
                return
            except HttpParserUpgrade as offer:
                if self.get_method() == b"CONNECT":  # not an offer: httptools stops at every CONNECT
                    raise HttpParserError("CONNECT requests are not supported: this server is not a proxy") from offer
                # httptools stops behind a head with an offer. A new parser gets the same head without the offer, then
                # the body.
                unparsed_data = unparsed_data[offer.args[0] :]
                head = self._build_plain_head()
                self._parser = self._build_parser()
                self._parser.feed_data(head)
                if not unparsed_data:
                    return

    def on_headers_complete(self) -> None:
        """Report a head. A head with an offer is not reported: it is parsed again without the offer."""
        if not self._parser.should_upgrade():
            self._listener.on_headers_complete()

    def on_message_complete(self) -> None:
        """Report the end of a request."""
        if not self._parser.should_upgrade():
            self._listener.on_message_complete()

    def should_upgrade(self) -> bool:
        """Return False: the server never switches to an offered protocol."""
        return False

    def should_keep_alive(self) -> bool:
        """Return True if the client leaves the connection open."""
        return bool(self._parser.should_keep_alive())

    def get_http_version(self) -> str:
        """Return the version of the current request, such as "1.1"."""
        return str(self._parser.get_http_version())

    def get_method(self) -> bytes:
        """Return the method of the current request."""
        return bytes(self._parser.get_method())

    def _build_parser(self) -> HttpRequestParser:
        """Return a new parser that reports to this object."""
        parser = HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # same as uvicorn, for pipelined requests
        return parser

    def _build_plain_head(self) -> bytes:
        """Return the present head as bytes, without the headers of an upgrade offer."""
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._listener.url, self.get_http_version().encode())]
        for name, value in self._listener.headers:
            if name == b"connection":
                value = b",".join(token for token in value.split(b",") if token.strip().lower() not in _OFFER)
            if name not in _OFFER and (value or name != b"connection"):
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])


# HeldHead delays the head of a reply to send head and body in one write.
# uvicorn writes the head and the body of a reply separately. The first write wakes a client on the same machine,
# and the client takes the core before the second write: with few cores a short reply then costs several times its
# own work. Invariants: bytes leave in the order of their writes; a head waits for the loop's next turn at most, so
# the beginning of a stream is not delayed.
_HEAD = b"HTTP/1.1 "


class HeldHead:
    """Wraps a connection's transport, and sends the head of a reply together with the first part of its body.

    All other attributes are the transport's own.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._buffered_head = b""

    def write(self, data: bytes) -> None:
        """Write data, or hold the head of a reply until the next write."""
        if self._buffered_head:
            buffered, self._buffered_head = self._buffered_head, b""
            self._transport.write(buffered + data)
        elif data.startswith(_HEAD):
            self._buffered_head = data
            self._loop.call_soon(self._flush_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send a buffered response head, then close the transport."""
        self._flush_head()
        self._transport.close()

    def _flush_head(self) -> None:
        """Send a held head that no body part has followed."""
        buffered, self._buffered_head = self._buffered_head, b""
        if buffered and not self._transport.is_closing():
            self._transport.write(buffered)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
