"""AsyncOpenAI clients with shared HTTP resources.

Invariant: all network clients of a process share one HTTP client (its TLS context takes 16 ms to create) with
connection pools per event loop and key; a request searches every connection of its pool. In-process clients have a
transport without a pool. Retries and time limits are off: a failed model call is recorded and ends its episode, limited
by the rollout. The SDK's platform headers are computed once, not in a thread per client.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx

from ajet.schema.endpoint import Endpoint
from ajet.workflow.ambient import split_pools

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Factory = Callable[[], httpx.AsyncBaseTransport]
POOLS = 32
"""Number of connection pools of an event loop."""


class KeyedTransport(httpx.AsyncBaseTransport):
    """Connection pools by key. Closing a client keeps the pools open for other clients."""

    def __init__(self, build: Factory) -> None:
        """Create POOLS transports, each with connections per event loop.

        Args:
            build: Creates a transport.
        """
        self._transports = [build() for _ in range(POOLS)]
        for transport in self._transports:
            split_pools(transport)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request by one of the pools, chosen by the hash of its key."""
        pool = hash(request.headers.get("authorization")) % POOLS
        return await self._transports[pool].handle_async_request(request)


def make_client(endpoint: Endpoint) -> AsyncOpenAI:
    """Return a client with the endpoint's address, key and model, usable from any event loop.

    It neither retries nor has a timeout: a failed call ends its episode, and the rollout limits the time.
    """
    transport = _build_network_transport() if endpoint.transport is None else endpoint.transport()
    client: AsyncOpenAI = _client_class()(
        endpoint.model,
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        http_client=httpx.AsyncClient(transport=transport, trust_env=False, timeout=None),
        max_retries=0,
        timeout=None,
    )
    client._platform = _find_platform()  # otherwise the SDK computes it in a thread of each client
    return client


@cache
def _find_platform() -> Any:
    """Return the platform that the SDK reports in its headers, computed once per process."""
    from openai._base_client import get_platform

    return get_platform()


@cache
def _build_network_transport() -> KeyedTransport:
    """Return the transport shared by all network clients of the process, with one TLS context."""
    context = ssl.create_default_context()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return KeyedTransport(lambda: httpx.AsyncHTTPTransport(verify=context, limits=limits))


def _as_objects(messages: Any) -> Any:
    """Convert AgentScope's message objects to OpenAI's format; other messages stay unchanged.

    Message objects of the openai SDK have a role and a content, too, but also `model_dump`.
    """
    if hasattr(messages, "role") and hasattr(messages, "content"):
        messages = [messages]
    if not isinstance(messages, (list, tuple)):
        return messages
    return [
        {"role": message.role, "content": message.content}
        if hasattr(message, "role") and hasattr(message, "content") and not hasattr(message, "model_dump")
        else message
        for message in messages
    ]


@cache
def _client_class() -> Any:
    """Return a subclass of AsyncOpenAI with a default model.

    It is defined on first use, since openai is imported late.
    """
    from functools import cached_property

    from openai import AsyncOpenAI
    from openai.resources.chat import AsyncChat
    from openai.resources.chat.completions import AsyncCompletions

    class Completions(AsyncCompletions):
        """Fills in the endpoint's model, and takes the messages by position, too."""

        _client: EpisodeClient

        def create(self, messages: Any = None, **kwargs: Any) -> Any:
            """Request a completion; `model` defaults to the endpoint's."""
            if messages is not None:
                kwargs["messages"] = _as_objects(messages)
            kwargs["model"] = kwargs.get("model") or self._client.default_model
            return super().create(**kwargs)

        def parse(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["model"] = kwargs.get("model") or self._client.default_model
            return super().parse(*args, **kwargs)

        def stream(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["model"] = kwargs.get("model") or self._client.default_model
            return super().stream(*args, **kwargs)

    class Chat(AsyncChat):
        @cached_property
        def completions(self) -> Completions:
            return Completions(self._client)

    class EpisodeClient(AsyncOpenAI):
        """AsyncOpenAI with a default model."""

        def __init__(self, default_model: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.default_model = default_model

        @cached_property
        def chat(self) -> Chat:
            return Chat(self)

        def copy(self, **kwargs: Any) -> Any:
            return super().copy(_extra_kwargs={"default_model": self.default_model}, **kwargs)

        with_options = copy

    return EpisodeClient
