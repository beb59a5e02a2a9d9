"""What an attempt's session with an MCP server is, whoever speaks the protocol: `thin` or the `mcp` SDK.

Invariants, for every implementation (one test suite holds them): a session serves one attempt, from any task, thread
and event loop; each method ends within its deadline; nothing longer than `Limits.reply_bytes` is parsed; what the tool
itself says, failed or not, is a `Reply`; everything else that goes wrong is a `CallFailedError` that says whose it was
and whether the call may have been delivered. No session repeats a call by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet.environment.loop import CallFailedError as CallFailedError


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds, and a size. `call` is overridden by a server's own `timeout`."""

    start: float = 60.0
    call: float = 120.0
    close: float = 5.0
    reply_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: Mapping[str, Any]
    """JSON schema of the arguments."""
    repeatable: bool = False
    """Its server says that a second call does no more than one (`idempotentHint`, `readOnlyHint`)."""
    takes_call_id: bool = False
    """Its server knows a call by its id (`_meta: {"ajet/callId": true}`) and answers a repeated one from memory."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A tool's answer: MCP's content blocks, as they came."""

    content: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    failed: bool = False
    """The tool, or the server in its place, said that the call failed."""
    structured: Any = None


class Session(Protocol):
    """One attempt's session with a server."""

    @property
    def ended(self) -> bool:
        """Whether it is known that nothing more can come from it."""
        ...

    async def tools(self) -> Sequence[Tool]:
        """All tools, every page of them. Raises CallFailedError."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str = "") -> Reply:
        """Call once. Raises CallFailedError."""
        ...

    async def close(self) -> None:
        """End it and whatever was started for it. Idempotent, raises nothing."""
        ...
