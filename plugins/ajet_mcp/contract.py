"""The contract of an attempt's session with an MCP server.

Invariants, checked by one test suite: a session serves one attempt, from any task, thread and event loop. Each method
ends within its deadline. A reply longer than `Limits.reply_bytes` is not parsed. The tool's own output, failed or not,
is a `Reply`. Any other failure is a `CallFailedError`, with the failing party and whether the call may have been
delivered. A session does not retry calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet.environment.loop import CallFailedError as CallFailedError


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds, and a size limit. The `timeout` of a server overrides `call`."""

    start: float = 60.0
    call: float = 120.0
    close: float = 5.0
    reply_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as described by its server."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments."""
    repeatable: bool = False
    """True if the server declares a second call harmless (`idempotentHint`, `readOnlyHint`)."""
    takes_call_id: bool = False
    """True if the server identifies a call by its id (`_meta: {"ajet/callId": true}`) and answers a repeated call from
    memory."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A tool's answer: MCP content blocks, unchanged."""

    content: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    failed: bool = False
    """True if the tool, or the server in place of the tool, reported a failure."""
    structured: Any = None


class Session(Protocol):
    """The session of one attempt with a server."""

    @property
    def ended(self) -> bool:
        """True if the session is known to return no further replies."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """Return all tools, from all pages of the list.

        Raises:
            CallFailedError: the tools cannot be listed.
        """
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str = "") -> Reply:
        """Call a tool once.

        Raises:
            CallFailedError: the call failed outside the tool.
        """
        ...

    async def close(self) -> None:
        """End the session and all processes started for it. Idempotent, raises no exception."""
        ...
