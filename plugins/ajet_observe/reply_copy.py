"""ReplyCopy: copies an endpoint's reply for the record while the bytes go to the client.

Invariant: copying does not change the forwarded bytes, takes a bounded amount of memory, and removes the request's keys
from the copy. A call's problem is caused by the endpoint (a status, silence, a missing end) or by the client's leaving.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import httpx

from ajet.gateway.exchange import MAX_BODY
from ajet.gateway.remote_reply import describe_body
from ajet.gateway.remote_stream import DialectName, RemoteStream
from ajet.record.secrets import Redactor
from ajet.schema.bounded_json import LONG_BYTES
from ajet.schema.call import FinishReason
from ajet.schema.secrets import is_secret_name
from ajet.schema.settled import parse_storable_json, repair_surrogates

CLIENT_LEFT = "the client disconnected before the reply was complete"
MAX_COPIED = MAX_BODY
"""Limit on the copied bytes of a reply, decompressed. All bytes are passed on."""
LOGGED_SILENCE_S = 5.0
"""Seconds of an endpoint's silence that are logged if its client leaves."""
_PASSWORD = re.compile("//[^/@]*@")


class ReplyCopy:
    """The copy of one reply.

    Args:
        dialect: protocol of the request (OpenAI, Anthropic, …); None if only the problem is needed.
    """

    def __init__(self, dialect: DialectName | None, redact: Redactor) -> None:
        """Start an empty copy. `redact` removes the request's keys from what is recorded."""
        self.problem = ""
        self.finish: FinishReason | None = None
        self.is_cut = False
        """True if the endpoint's reply ended early, so the connection to the client must be broken off, too."""
        self.was_silent = False
        """True if the client disconnected after waiting long for an endpoint that sent nothing."""
        self._dialect, self._redact = dialect, redact
        self._stream: RemoteStream | None = None
        self._body_parts: list[bytes] = []
        self._body_size = 0
        self._status = 200
        self._redirect = ""
        self._decompressor: Any = None
        self._received_at = time.monotonic()

    @property
    def is_long(self) -> bool:
        """True if `build_body` is slow enough to need a thread."""
        return self._body_size > LONG_BYTES

    def note_leave(self) -> None:
        """Record that the client has left."""
        silence = time.monotonic() - self._received_at
        self.problem = CLIENT_LEFT
        self.finish = "aborted"
        self.was_silent = silence >= LOGGED_SILENCE_S
        if self.was_silent:
            self.problem += f"; the endpoint had sent nothing for {silence:.0f} s"

    def begin(self, reply: httpx.Response) -> None:
        """Record the reply's status and headers."""
        self._status, self._received_at = reply.status_code, time.monotonic()
        if location := reply.headers.get("location", ""):
            self._redirect = " to " + _PASSWORD.sub("//", location.partition("?")[0])
        if reply.headers.get("content-encoding", "identity") in ("gzip", "deflate"):
            # 47 makes zlib detect whether the data are gzip or deflate.
            self._decompressor = zlib.decompressobj(47)
        if self._dialect is not None and reply.headers.get("content-type", "").startswith("text/event-stream"):
            self._stream = RemoteStream(self._dialect)

    def feed(self, part: bytes) -> None:
        """Copy the next bytes of the reply."""
        self._received_at = time.monotonic()
        if self._dialect is None or self._body_size > MAX_COPIED:
            return
        if self._decompressor is not None:
            try:
                part = self._decompressor.decompress(part, MAX_COPIED + 1 - self._body_size)
            except zlib.error:
                part = b""
        self._body_size += len(part)
        if self._body_size > MAX_COPIED:
            self._body_parts.clear()
        elif self._stream is not None:
            self._stream.feed(part)
        else:
            self._body_parts.append(part)

    def build_body(self) -> Any:
        """Return the body to record, and set `problem` and `finish` from it."""
        data, stream = b"".join(self._body_parts), self._stream
        body: Any = parse_storable_json(data) if data else None
        if stream is not None:
            body = repair_surrogates(stream.build_body())  # a character may be split between two events
        body = self._redact.tree(body)
        self.problem = self.problem or self._find_problem(body)
        is_redirect = 300 <= self._status < 400
        if self._dialect is not None and (self._status >= 400 or (is_redirect and not self.problem)):
            outcome = f"answered with a redirect{self._redirect}" if is_redirect else "refused"
            is_page = body is None or (isinstance(body, dict) and list(body) == ["text"])
            answer_text = describe_body(self._dialect, body) if is_page else json.dumps(body, ensure_ascii=False)
            answer_text = self._redact(answer_text)[:500]  # redacted first, so that no part of a key remains
            self.problem = self._redact(f"the endpoint {outcome} with status {self._status}: ") + answer_text
            self.finish = "error"
            return None
        self.problem = self._redact(self.problem)[:500]
        if self.problem:
            self.finish = self.finish or "error"
            return None if stream is None else body  # half a JSON object is not worth recording
        return body

    def _find_problem(self, body: Any) -> str:
        """Describe why the copied reply is not complete, or return ""."""
        if self._body_size > MAX_COPIED:
            return f"the reply is larger than {MAX_COPIED >> 20} MiB, so it is not recorded"
        if self._stream is None:
            return ""
        if self._stream.error or not self._stream.has_ended:
            return self._stream.error or "the endpoint broke off its reply"
        return "the endpoint's stream contained no reply" if body is None else ""


def build_key_redactor(headers: Mapping[bytes, bytes], query: bytes) -> Redactor:
    """Return a redactor that replaces all secrets in a request's headers and query by a mark."""
    secrets: list[str] = []
    for name, raw_value in headers.items():
        value = raw_value.decode("latin-1").strip()
        if name == b"cookie":
            secrets += (cookie.partition("=")[2].strip() for cookie in value.split(";"))
        elif is_secret_name(name.decode("latin-1")):
            # The last word: the header may be "Bearer KEY".
            secrets.append(value.rpartition(" ")[2])
    secrets += (value for name, value in parse_qsl(query.decode("latin-1")) if name == "key" or is_secret_name(name))
    return Redactor({}, [("api_key", key) for key in secrets])
