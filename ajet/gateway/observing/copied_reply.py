"""Copied reply: what of an endpoint's reply is kept, while its bytes go to the client.

Invariant: nothing of it changes what passes, and no key is in it. What ended it is said by the endpoint's side of it:
a status, silence, an end that never came.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from typing import Any

import httpx

from ajet.gateway.exchange import MAX_BODY
from ajet.gateway.observing.hidden import Hidden
from ajet.gateway.observing.session import Ended
from ajet.gateway.observing.sessions import CLIENT_LEFT
from ajet.gateway.remote_reply import describe_body
from ajet.gateway.remote_stream import DialectName, RemoteStream
from ajet.schema.bounded_json import LONG_BYTES
from ajet.schema.settled import parse_storable_json, repair_surrogates

MOST_KEPT = MAX_BODY
"""Bytes of a reply, unpacked, of which a copy is kept; all of it is passed on."""
WORTH_A_WORD = 5.0
"""Seconds of an endpoint's silence that are said where its client left."""
_PASSWORD = re.compile("//[^/@]*@")


class CopiedReply:
    """The kept part of one request's reply. `dialect` None: nothing is kept."""

    def __init__(self, dialect: DialectName | None, hidden: Hidden) -> None:
        self._dialect, self._hidden = dialect, hidden
        self._stream: RemoteStream | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._unpack: Any = None
        self._status = 200
        self._to = ""
        self._heard = time.monotonic()
        self.waited = False
        """The client left an endpoint that had said nothing for a while."""
        self.broken = False
        """Its client is to see that the rest is missing."""
        self.problem = ""
        self.finish: Any = None

    def left(self) -> None:
        """The client has left."""
        silent = time.monotonic() - self._heard
        self.problem, self.finish, self.waited = CLIENT_LEFT, "aborted", silent >= WORTH_A_WORD
        if self.waited:
            self.problem += f"; the endpoint had sent nothing for {silent:.0f} s"

    def begin(self, reply: httpx.Response) -> None:
        """The reply's headers came."""
        self._status, self._heard = reply.status_code, time.monotonic()
        self._to = _PASSWORD.sub("//", reply.headers.get("location", "").partition("?")[0])
        if reply.headers.get("content-encoding", "identity") in ("gzip", "deflate"):
            self._unpack = zlib.decompressobj(47)
        if self._dialect is not None and reply.headers.get("content-type", "").startswith("text/event-stream"):
            self._stream = RemoteStream(self._dialect)

    def feed(self, part: bytes) -> None:
        """Some more of the reply came."""
        self._heard = time.monotonic()
        if self._dialect is None or self._size > MOST_KEPT:
            return
        if self._unpack is not None:
            try:
                part = self._unpack.decompress(part, MOST_KEPT + 1 - self._size)
            except zlib.error:
                part = b""
        self._size += len(part)
        if self._size > MOST_KEPT:
            self._parts.clear()
        elif self._stream is not None:
            self._stream.feed(part)
        else:
            self._parts.append(part)

    @property
    def is_long(self) -> bool:
        """True if `ended` takes so long that it belongs on a thread."""
        return self._size > LONG_BYTES

    def ended(self) -> Ended:
        """The call's end: its body, its problem."""
        problem, finish = self.problem, self.finish
        if self._size > MOST_KEPT:
            problem = problem or f"the reply is larger than what is kept of one, {MOST_KEPT >> 20} MiB"
        if self._stream is not None:
            body = repair_surrogates(self._stream.build_body())  # they may be halved between two events
            problem = problem or self._stream.error
            if not problem and not self._stream.has_ended:
                problem = "the endpoint broke off its reply"
            if not problem and body is None:
                problem = "the endpoint's stream held no reply"
        else:
            data = b"".join(self._parts)
            body = parse_storable_json(data) if data else None
        if self._status >= 300 and self._dialect is not None and not (problem and self._status < 400):
            to = f" to {self._to}" if self._to else ""
            what = f"answered with a redirect{to}" if self._status < 400 else "refused"
            said = self._hidden.text(_told(self._dialect, self._hidden.tree(body)))[:500]  # it cuts: no key by halves
            return Ended(None, self._hidden.text(f"the endpoint {what} with status {self._status}: ") + said, "error")
        if problem and self._stream is None:
            body = None  # half a JSON object says nothing
        if problem and finish is None:
            finish = "error"
        return Ended(self._hidden.tree(body), self._hidden.text(problem)[:500], finish)


def _told(dialect: DialectName, body: Any) -> str:
    """The words of a refusal: an endpoint's JSON as it is, all else in words."""
    page = body is None or (isinstance(body, dict) and list(body) == ["text"])
    return describe_body(dialect, body) if page else json.dumps(body, ensure_ascii=False)
