"""A model call on the gateway's own loop, without HTTP and dialects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ajet.gateway import ParsedRequest, Session


async def call_model(session: Session, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that answers a conversation of the agent `default`."""
    call = session.start_call(ParsedRequest("default", messages))
    (reply,) = call.replies
    assert reply.task is not None
    await reply.task
    call.deliveries += 1
    call.leave()
    session.inflight.remove(call)
    assert reply.message is not None
    return reply.message
