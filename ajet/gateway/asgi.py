"""ASGI messages and scope keys that the parts of a gateway and its servers share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ajet.gateway.limits import peer_of
from ajet.gateway.request import Refused

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]
Leave = Callable[[], None]

LOST = "ajet.lost"
"""State key: a function to call if the client turns out to have left without its reply."""
WATCH = "ajet.watch"
"""State key: takes the function to call when the client leaves (`None` unregisters).

Without this key a task waits for a disconnect from `receive`."""
ADDRESS_FIELDS = "ajet.address_fields"
"""Scope key: fields of the request that stand in its address, such as Gemini's model."""
REQUEST_ID = "ajet.request_id"
"""State key: the id of the request, repeated in the headers of the answer."""
NO_RETRY_HEADER = (b"x-should-retry", b"false")
"""Header that keeps OpenAI's and Anthropic's clients from retrying."""
JSON_HEADER = (b"content-type", b"application/json")
encode_json = json.JSONEncoder(separators=(",", ":")).encode
"""Returns the shortest JSON text of a value."""


def add_request_id(message: Any, request_id: str) -> Any:
    """Return the ASGI message, with the request's id in the head of an answer, under Anthropic's and OpenAI's header
    names.
    """
    if message["type"] != "http.response.start":
        return message
    encoded = request_id.encode()
    return {**message, "headers": [*message["headers"], (b"request-id", encoded), (b"x-request-id", encoded)]}


async def send_json(send: Send, status: int, body: Mapping[str, Any], headers: Headers = ()) -> None:
    """Answer with a JSON object."""
    content = encode_json(body).encode()
    head = [JSON_HEADER, (b"content-length", b"%d" % len(content)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": content, "more_body": False})


async def send_refusal(send: Send, refused: Refused, body: Mapping[str, Any], headers: Headers = ()) -> None:
    """Send an error as the answer. `headers` come before those of the refusal."""
    await send_json(send, refused.status, body, [*headers, *list_refusal_headers(refused)])


def list_refusal_headers(refused: Refused) -> list[tuple[bytes, bytes]]:
    """Return the headers that control a client's retries."""
    headers: list[tuple[bytes, bytes]] = []
    if refused.retry_after is not None:
        headers.append((b"retry-after", str(refused.retry_after).encode()))
    if refused.final:
        headers.append(NO_RETRY_HEADER)
    return headers


async def end_by_shutdown(scope: Scope, send: Send, build_error: Callable[[Refused], Mapping[str, Any]]) -> None:
    """Answer a request interrupted by the server's shutdown.

    The client gets a 503 with `retry-after`, or its connection is closed if a reply has begun.
    """
    peer = peer_of(scope)
    if peer is not None and peer.begun:
        await break_off(scope)
        return
    refusal = Refused(
        "The server is shutting down. Retry the request once it has been restarted.",
        status=503,
        code="ended",
        retry_after=1,
    )
    await send_refusal(send, refusal, build_error(refusal))


async def break_off(scope: Scope) -> None:
    """Close the client's connection, so that its stream ends without the final mark and the client sees an error."""
    peer = peer_of(scope)
    if peer is not None:
        peer.transport.abort()
        await asyncio.sleep(0)  # lets uvicorn notice, or uvicorn would log a reply without an end
