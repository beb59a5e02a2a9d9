"""Serving: what a gateway serves and within which bounds, as one value that its sessions and routes are given.

Invariant: none of it changes while the gateway runs, and nobody needs the server itself to make a reply: keys and
waiting calls, which do change, guard themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from ajet.engine.adapters import Adapters
from ajet.engine.contract import ChatEngine, TokenEngine
from ajet.gateway.hints import Heard
from ajet.gateway.keys import Keys
from ajet.gateway.running_calls import Load
from ajet.gateway.worker_threads import Aside
from ajet.tokens import Renderer


@dataclass(frozen=True, slots=True)
class Serving:
    """`max_model_len` bounds prompt + reply, `max_response_tokens` one reply."""

    engine: TokenEngine | ChatEngine
    renderer: Renderer | None
    max_model_len: int
    max_response_tokens: int
    force_disable_toolcalls: bool
    """Requests lose their tools."""
    chat_engine_for: Callable[[str], ChatEngine] | None
    """Finds the chat engine of a debug model by its name; None: such agents talk to the engine, untrained."""
    keys: Keys[Any]
    """Of its sessions."""
    load: Load
    """Calls under way, over all sessions."""
    aside: Aside
    """Where long requests are rendered, beside the gateway's loop."""
    heard: Heard
    """What clients asked for that changes nothing."""
    adapters: Adapters
    """Of the engine's model, and whose each is; empty where there are not several."""

    samples_tokens: bool = field(init=False)
    """Whether the engine answers in tokens."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples_tokens", isinstance(self.engine, TokenEngine))  # slow: asked once


@dataclass(frozen=True, slots=True)
class Reach:
    """The addresses by which a running gateway is reached."""

    base_url: str
    """What clients are given; ends in /v1."""
    transport: Callable[[], httpx.AsyncBaseTransport]
    """The same for httpx clients of this process, from any event loop."""
    on_loop: Callable[[Callable[[], None]], None]
    """Runs a function on the gateway's own thread and waits for it."""
