"""GatewayContext: the engine, services and limits of a gateway, shared by its sessions and routes.

Invariant: no field is replaced while the gateway runs, and no session needs the server itself to make a reply. Keys,
limits and logs do change, and guard themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from ajet.engine.adapters import Adapters
from ajet.engine.contract import ChatEngine, TokenEngine
from ajet.gateway.ignored_fields import IgnoredFieldLog, RequestFilter
from ajet.gateway.inflight_call import CallLimit
from ajet.gateway.keys import Keys
from ajet.gateway.prompt import RenderThreadPool
from ajet.gateway.stream_pacing import StreamPacing
from ajet.tokens import Renderer


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """The objects that all sessions and routes of one gateway use."""

    engine: TokenEngine | ChatEngine
    renderer: Renderer | None
    max_model_len: int
    """Limit on the tokens of prompt and reply together."""
    max_response_tokens: int
    """Limit on the tokens of one reply."""
    force_disable_toolcalls: bool
    """True if tools are removed from requests."""
    chat_engine_for: Callable[[str], ChatEngine] | None
    """Returns the chat engine of a debug model by name. `None`: agents with a debug model use the engine, untrained."""
    keys: Keys[Any]
    """The keys of the gateway's sessions."""
    call_limit: CallLimit
    pacing: StreamPacing
    render_threads: RenderThreadPool
    ignored_fields: IgnoredFieldLog
    adapters: Adapters
    """Adapters of the engine's model and their agents; empty for a single model."""
    request_filter: RequestFilter | None
    """None if the configuration removes nothing from requests."""

    samples_tokens: bool = field(init=False)
    """True if the engine returns token ids."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples_tokens", isinstance(self.engine, TokenEngine))  # slow, so done once


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Address of a running gateway, and access to its loop."""

    base_url: str
    """The URL for clients, ending in /v1."""
    transport: Callable[[], httpx.AsyncBaseTransport]
    """Builds a transport for httpx clients of this process, on any event loop."""
    run_on_loop: Callable[[Callable[[], None]], None]
    """Runs a function on the gateway's own thread and waits for the result."""
