"""PlainParser: httptools' request parser for a server that supports only HTTP/1.1.

httptools stops behind the head of a request that offers another protocol and drops the body. A JDK client or `curl
--http2` offers h2c with every request. A server may ignore the offer (RFC 9110, 7.8). Invariant: a request with an
offer is parsed as if without its `Upgrade` header, however its bytes are cut.
"""

from __future__ import annotations

from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

_OFFER = {b"upgrade", b"http2-settings"}
"""Header names, and tokens of `Connection`, of an upgrade offer."""


class HttpListener(Protocol):
    """Receives the parts of a request; `url` and `headers` hold the latest head."""

    url: bytes
    headers: list[tuple[bytes, bytes]]

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


class PlainParser:
    """Parses the requests of one connection. Its methods are those of `httptools.HttpRequestParser`."""

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self.on_message_begin, self.on_url = listener.on_message_begin, listener.on_url
        self.on_header, self.on_body = listener.on_header, listener.on_body
        self._parser = self._build_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse the next bytes. Raises httptools.HttpParserError for invalid HTTP."""
        rest = memoryview(data)
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except HttpParserUpgrade as offer:
                if self.get_method() == b"CONNECT":  # not an offer: httptools stops at every CONNECT
                    raise HttpParserError("CONNECT requests are not supported: this server is not a proxy") from offer
                rest = rest[offer.args[0] :]
                head = self._build_plain_head()
                self._parser = self._build_parser()
                self._parser.feed_data(head)
                if not rest:
                    return

    def on_headers_complete(self) -> None:
        """Report a head, except a head with an offer: such a head is parsed again without the offer."""
        if not self._parser.should_upgrade():
            self._listener.on_headers_complete()

    def on_message_complete(self) -> None:
        """Report the end of a request."""
        if not self._parser.should_upgrade():
            self._listener.on_message_complete()

    def should_upgrade(self) -> bool:
        """Return False: the server accepts no offer."""
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
        parser = HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # same as uvicorn, for pipelined requests
        return parser

    def _build_plain_head(self) -> bytes:
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._listener.url, self.get_http_version().encode())]
        for name, value in self._listener.headers:
            if name == b"connection":
                value = b",".join(token for token in value.split(b",") if token.strip().lower() not in _OFFER)
            if name not in _OFFER and (value or name != b"connection"):
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])
