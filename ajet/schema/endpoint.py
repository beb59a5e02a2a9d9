"""Endpoint: how a client reaches the gateway for one (episode, agent, target).

Invariant: the key is a random token looked up on the server side; it encodes nothing, dies with the episode and
never prints. Rollout hands endpoints to the tuner, which thus imports neither gateway nor engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import httpx

    from ajet.schema.tool_use import ToolUse


FOREIGN_KEY = "the-key-of-another-attempt"
"""Stands in a request for the key of an attempt that is not the sender's: it opens nothing."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model's address: base URL, model name, key, and the variables that tell a client of them."""

    base_url: str
    """Ends in /v1."""
    api_key: str = field(repr=False)
    model: str = "ajet"
    transport: Callable[[], httpx.AsyncBaseTransport] | None = field(default=None, repr=False, compare=False)
    """Makes an in-process transport for httpx, usable from any event loop; None: use the network."""

    @property
    def for_anthropic(self) -> Endpoint:
        """This endpoint with the base URL that Anthropic's clients are given: without /v1."""
        return replace(self, base_url=self.base_url.removesuffix("/v1"))

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients that are given nothing find it."""
        root = self.base_url.removesuffix("/v1")
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_KEY": self.api_key,
        }

    @property
    def keyed_url(self) -> str:
        """A base URL that holds the key, for clients that can set none. As secret as the key."""
        return f"{self.base_url.removesuffix('/v1')}/s/{self.api_key}/v1"


class Endpoints(Protocol):
    """Gives the endpoint of one agent of the running episode; repeated calls give the same one. Thread-safe."""

    def __call__(self, agent_name: str, target_tag: str, debug_model: str | None) -> Endpoint: ...

    def context_full(self) -> bool:
        """Whether a request of the episode was refused because its context is full, or a reply was cut for it."""
        ...

    def tool_used(self, use: ToolUse) -> None:
        """Keep a use of a tool with the episode; nothing happens once that is over. Raises TypeError and ValueError
        for what is no use."""
        ...
