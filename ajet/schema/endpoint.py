"""Endpoint: a client's access to the gateway for a triple (episode, agent, target).

Invariant: the key is a random token without encoded information. Only the server can look up the key. It is revoked
with the episode and never printed. The rollout hands endpoints to the tuner. The tuner imports neither gateway nor
engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import httpx

    from ajet.schema.tool_use import ToolUse


FOREIGN_KEY = "the-key-of-another-attempt"
"""Replaces another attempt's key in a recorded request. The placeholder is not a valid key."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model's address: base URL, model name, key, and environment variables for clients."""

    base_url: str
    api_key: str = field(repr=False)
    model: str = "ajet"
    transport: Callable[[], httpx.AsyncBaseTransport] | None = field(default=None, repr=False, compare=False)
    """Makes an in-process transport for httpx, usable from any event loop. None: use the network."""

    @property
    def for_anthropic(self) -> Endpoint:
        """A copy whose base URL has no /v1, because Anthropic's clients add it themselves."""
        return replace(self, base_url=self.base_url.removesuffix("/v1"))

    @property
    def environment(self) -> dict[str, str]:
        """The variables from which OpenAI's and Anthropic's clients read address and key by default."""
        anthropic_url = self.base_url.removesuffix("/v1")
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": anthropic_url,
            "ANTHROPIC_API_KEY": self.api_key,
        }

    @property
    def keyed_url(self) -> str:
        """A base URL that contains the key, for clients that cannot send one. As secret as the key."""
        return f"{self.base_url.removesuffix('/v1')}/s/{self.api_key}/v1"


class Endpoints(Protocol):
    """Returns the endpoint of an agent of the running episode, the same one at every call. Thread-safe."""

    def __call__(self, agent_name: str, target_tag: str, debug_model: str | None) -> Endpoint: ...

    def context_full(self) -> bool:
        """Return True if the context window was full for a request of the episode: it was refused or its reply cut."""
        ...

    def tool_used(self, use: ToolUse) -> None:
        """Record a use of a tool. Has no effect after the episode's end.

        Raises:
            TypeError: the use has a value of a wrong type.
            ValueError: the use is invalid.
        """
        ...
