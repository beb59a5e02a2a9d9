"""GatewayContext: what a gateway serves and within which bounds, shared by its sessions and routes.

Invariant: none of it is replaced while the gateway runs, and no session needs the server itself to make a reply. Keys,
limits and logs, which do change, guard themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from ajet.engine.adapters import Adapters
from ajet.engine.contract import ChatEngine, TokenEngine
from ajet.gateway.ignored_fields import IgnoredFieldLog
from ajet.gateway.inflight_call import CallLimit
from ajet.gateway.keys import Keys
from ajet.gateway.prompt import RenderThreadPool
from ajet.gateway.stream_pacing import StreamPacing
from ajet.tokens import Renderer


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """The parts of one gateway."""

    engine: TokenEngine | ChatEngine
    renderer: Renderer | None
    max_model_len: int
    """Tokens of prompt and reply together."""
    max_response_tokens: int
    """Tokens of one reply."""
    force_disable_toolcalls: bool
    """Tools are removed from requests."""
    chat_engine_for: Callable[[str], ChatEngine] | None
    """Finds the chat engine of a debug model by its name; None: such agents use the engine, untrained."""
    keys: Keys[Any]
    """The keys of its sessions."""
    call_limit: CallLimit
    pacing: StreamPacing
    render_threads: RenderThreadPool
    ignored_fields: IgnoredFieldLog
    adapters: Adapters
    """Adapters of the engine's model and their agents; empty if there are not several."""

    samples_tokens: bool = field(init=False)
    """True if the engine answers in tokens."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples_tokens", isinstance(self.engine, TokenEngine))  # slow, so done once


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """How a running gateway is reached."""

    base_url: str
    """The URL that clients are given; it ends in /v1."""
    transport: Callable[[], httpx.AsyncBaseTransport]
    """Builds a transport for httpx clients of this process, on any event loop."""
    run_on_loop: Callable[[Callable[[], None]], None]
    """Runs a function on the gateway's own thread and waits for it."""
