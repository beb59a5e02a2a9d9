"""The interface of a session between one attempt and one MCP server.

Invariants, checked by one test suite: a session serves one attempt, from any task, thread and event loop. Each method
ends within its deadline. A reply longer than `Limits.reply_bytes` is not parsed. The tool's own output is a `Reply`,
also if the tool failed. Any other failure is a `CallFailedError`, which says who failed and whether the call may have
reached the server. A session does not retry calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet.environment.loop import CallFailedError as CallFailedError


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines of a session in seconds, and the largest reply in bytes.

    A server's own `timeout` replaces `call`.
    """

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
    """A connection of one attempt to one tool server."""

    @property
    def ended(self) -> bool:
        """True once the session can return no further replies."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """Return all tools, from all pages of the list.

        Raises:
            CallFailedError: the tools cannot be listed.
        """
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str = "") -> Reply:
        """Call a tool once, without retries.

        Args:
            call_id: the model's id of the call, for servers that recognize repeated calls.

        Raises:
            CallFailedError: the call failed outside the tool.
        """
        ...

    async def close(self) -> None:
        """End the session and all processes started for it. Idempotent, raises no exception."""
        ...
