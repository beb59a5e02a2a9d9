"""A gateway over a scripted engine, clients of every kind, and what the gateway records of them.

Only this module and `served.py` name internals of the gateway, its engines and the trackers. The gate tests say
everything else by HTTP, by the clients' libraries and by the types of `ajet.schema`: a change inside the product
changes these modules and no test.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ajet.context_tracker import timelines
from ajet.engine.contract import Sampling, TokenEngine
from ajet.engine.scripted import ScriptedChat, ScriptedEngine, ScriptedReply, scripted_logprob
from ajet.gateway import Capture, Gateway, Session, exchange, prompt, stream_pacing
from ajet.gateway.token_sampler import TRIES
from ajet.schema.call import Call
from ajet.schema.endpoint import Endpoint
from ajet.tokens import Renderer, TemplateRefused
from ajet.tokens.template_doctor import TOOL, call, own_reply, result
from ajet_proof import prove
from tests.support.chat_templates import tokenizer

if TYPE_CHECKING:
    import openai

__all__ = [
    "ADD", "ASK", "Capture", "EpisodeSession", "GatedRenderer", "LONG_PROMPT", "Renderer", "RunningGateway",
    "Sampling", "ScriptedChat", "ScriptedEngine", "ScriptedReply", "TOOL", "TRIES", "TemplateRefused", "call",
    "client_of", "gather_stream_events", "limit_bodies", "own_reply", "post", "prove", "render_in_threads",
    "renderer_of_config", "renderer_of_style", "result", "scripted_logprob", "seeing_renderer", "spelled_out",
    "start_gateway", "timelines", "wait_on_loop",
]  # fmt: skip

T = TypeVar("T")
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 2?"}]
LONG_PROMPT = prompt.LONG_PROMPT
"""Characters from which on a prompt is rendered in a thread of its own."""


class EpisodeSession:
    """One episode at a gateway: the endpoints of its agents, and what is recorded of it."""

    def __init__(self, gateway: RunningGateway, session: Session) -> None:
        self._gateway, self._session = gateway, session

    def endpoint(self, agent: str = "agent", target: str | None = None, debug_model: str | None = None) -> Endpoint:
        """Return the address and key of one agent. `target` None: the agent's own name."""
        return self._session(agent, agent if target is None else target, debug_model)

    def close(self) -> Capture:
        """End the episode; return its calls (`ajet.schema.call.Call`), messages, tools and checks."""
        return self._session.close()

    @property
    def calls(self) -> list[Call]:
        """The calls recorded so far."""
        return self._session.recorder.capture.calls

    @property
    def is_idle(self) -> bool:
        """True if no call and no request is under way."""
        return self._session.idle

    @property
    def is_sampling(self) -> bool:
        """True if a call is under way."""
        recorder = self._session.recorder
        replies = [reply for call in self._session.inflight.list_open() for reply in call.replies]
        return any(
            reply.call is not None and reply.has_place and not recorder.is_settled(reply.call) for reply in replies
        )

    @property
    def is_first_call_complete(self) -> bool:
        """True if the first call has its whole reply, whoever has read it."""
        stored = self._session.recorder.stored
        return bool(stored) and stored[0].is_settled

    @property
    def undelivered(self) -> int:
        """The number of requests whose replies nobody has read to the end."""
        return len(self._session.inflight.list_open())

    @property
    def readers(self) -> int:
        """The number of clients that wait for those replies."""
        return sum(call.clients for call in self._session.inflight.list_open())

    @property
    def clients(self) -> int:
        """The number of clients of the whole gateway that are being answered."""
        return self._gateway.clients

    @property
    def calls_under_way(self) -> int:
        """The number of calls of the whole gateway that are under way."""
        return self._gateway.calls_under_way

    def stored_text_size(self) -> int:
        """Count the characters that the gateway holds for this episode besides token ids."""
        stored = self._session.recorder.stored
        return sum(len(call.text) + len(call.reply_text) for call in stored)

    def stored_responses(self, names: list[str]) -> list[tuple[list[int], int]]:
        """Return of each stored response the identities of its input items in memory, and of its tools."""
        stored = [self._session.dialect_state["responses"].get(name) for name in names]
        return [([id(item) for item in each.input], id(each.response["tools"])) for each in stored]

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait up to a minute on the gateway's own loop until `condition` holds."""
        wait_on_loop(self._gateway, condition)

    def wait_until_calls_end(self) -> None:
        """Wait until no call is under way."""
        self.wait_until(lambda: not self.is_sampling)


@dataclass
class RunningGateway:
    """One gateway, its engine and renderer."""

    gateway: Gateway
    engine: Any
    renderer: Renderer

    @property
    def base_url(self) -> str:
        """The URL that clients are given; it ends in /v1."""
        return self.gateway.base_url

    @property
    def root_url(self) -> str:
        """That URL without /v1."""
        return self.base_url.removesuffix("/v1")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.root_url.removeprefix("http://").split(":")
        return host, int(port)

    @property
    def calls_under_way(self) -> int:
        """The number of calls that are under way."""
        return self.gateway.context.call_limit.reserved

    @property
    def asgi_app(self) -> Any:
        """The ASGI application, for a server that is not ours."""
        return self.gateway.app

    @property
    def clients(self) -> int:
        """The number of clients that are being answered."""
        return self.gateway.context.pacing.clients

    def open(self, **options: Any) -> EpisodeSession:
        """Open an episode."""
        settings: dict[str, Any] = {"key": (7, 3, 1), "sampling": Sampling(200, temperature=0.9), "trainable": None}
        return EpisodeSession(self, self.gateway.open("episode", **{**settings, **options}))

    def close(self) -> None:
        """End the gateway."""
        self.gateway.close()

    def ids(self, text: str, *, ended: bool = True) -> list[int]:
        """Return the token ids of a reply."""
        ids = self.renderer.encode(text).tolist()
        return [*ids, self.renderer.end_ids[0]] if ended else ids

    def answer_with(self, script: Any) -> None:
        """Have the engine answer by another script from now on."""
        self.engine.script = script

    @contextmanager
    def answers(self, script: Any, *, chunk: int) -> Iterator[None]:
        """Within the block the engine answers by another script, `chunk` tokens at a time."""
        kept = self.engine.script, self.engine.chunk
        self.engine.script, self.engine.chunk = script, chunk
        try:
            yield
        finally:
            self.engine.script, self.engine.chunk = kept

    def run_on_loop(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the gateway's own loop, from any thread."""
        return self.gateway.call(coroutine)

    def set_on_loop(self, event: asyncio.Event) -> None:
        """Set an event that waits on the gateway's own loop."""
        self.gateway.loop.call_soon_threadsafe(event.set)

    def add_route(self, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> None:
        """Serve this path too, as a server around the gateway does."""
        self.gateway.add_routes([Route(path, endpoint)])

    def shrink_send_buffers(self, size: int) -> None:
        """Let connections that come from now on buffer `size` bytes on their way to the client."""
        (acceptor,) = self.gateway._server.servers  # type: ignore[union-attr]
        acceptor._listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def open_connections(self) -> list[Any]:
        """Return the connections that the server holds."""
        (acceptor,) = self.gateway._server.servers  # type: ignore[union-attr]
        return list(acceptor._open_connections)


class GatedRenderer(Renderer):
    """A renderer that holds prompts of more than LONG_PROMPT characters until `go` is set; `begun` counts them."""

    def __init__(self) -> None:
        super().__init__(tokenizer("qwen25"))
        self.begun, self.go = threading.Semaphore(0), threading.Event()

    def render(self, messages: Any, tools: Any = None) -> Any:
        """See Renderer."""
        self._wait_if_long(messages[0]["content"])
        return super().render(messages, tools)

    def raw(self, prompt: Any) -> Any:
        """See Renderer."""
        self._wait_if_long(prompt)
        return super().raw(prompt)

    def _wait_if_long(self, text: Any) -> None:
        if len(text) > LONG_PROMPT:
            self.begun.release()
            assert self.go.wait(60)


def renderer_of_style(style: str = "qwen25", *, made: Any = None, **options: Any) -> Renderer:
    """Return the renderer of a chat template's style, or of the tokenizer `made`."""
    return Renderer(made or tokenizer(style), **options)


def seeing_renderer() -> Renderer:
    """Return the renderer of a model that sees images."""
    from tests.support.image_fixtures import seeing_renderer as make_renderer

    return make_renderer()


def renderer_of_config(yaml: Path, made: Any) -> Renderer:
    """Return the renderer that a run of this configuration has for the tokenizer `made`."""
    from ajet.config import load_experiment  # both take half a second that other tests need not spend
    from ajet.rollout.components import make_renderer

    return make_renderer(load_experiment(yaml).ajet, made)


@contextmanager
def start_gateway(
    script: Any = (), *, style: str = "qwen25", words: Renderer | None = None, engine: Any = None, **options: Any
) -> Iterator[RunningGateway]:
    """Run a gateway.

    Args:
        script: What the scripted engine answers; see `ajet.engine.scripted`.
        words: The renderer, instead of that of a `style`; a chat engine has none.
        engine: Another engine than the scripted one.
        options: latency, chunk, pace and version are the engine's; the rest is the gateway's.
    """
    renderer = words or renderer_of_style(style)
    scripted = {name: options.pop(name) for name in ("latency", "chunk", "pace", "version") if name in options}
    engine = engine or ScriptedEngine(
        script, encode=lambda text: renderer.encode(text).tolist(), end_id=renderer.end_ids[0], **scripted
    )
    limits = {"max_model_len": 2000, "max_response_tokens": 500, **options}
    gateway = Gateway(engine, renderer if isinstance(engine, TokenEngine) else None, **limits).start()
    try:
        yield RunningGateway(gateway, engine, renderer)
    finally:
        gateway.close()


def wait_on_loop(on: RunningGateway, condition: Callable[[], object]) -> None:
    """Wait up to a minute on the gateway's own loop until `condition` holds."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    on.run_on_loop(asyncio.wait_for(wait(), 60)).result()


def client_of(endpoint: Endpoint, *, in_process: bool = True, **options: Any) -> openai.AsyncOpenAI:
    """Return an unmodified AsyncOpenAI client."""
    import openai

    http = httpx.AsyncClient(transport=endpoint.transport()) if in_process and endpoint.transport else None
    settings: dict[str, Any] = {"max_retries": 0, **options}
    return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, http_client=http, **settings)


def post(endpoint: Endpoint, body: Any, *, key: str | None = None, path: str = "chat/completions") -> httpx.Response:
    """Send a raw request over the loopback port; `body` bytes are sent as they are."""
    headers = {"authorization": f"Bearer {key or endpoint.api_key}", "content-type": "application/json"}
    sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    return httpx.post(f"{endpoint.base_url}/{path}", headers=headers, timeout=60, **sent)


def spelled_out(on: RunningGateway, text: str) -> ScriptedReply:
    """Return a reply sampled one character a token, as no encoder would spell it."""
    ids = np.concatenate([on.renderer.encode(letter) for letter in text]).tolist()
    return ScriptedReply(ids=[*ids, on.renderer.end_ids[0]], ended=False)


@contextmanager
def limit_bodies(size: int) -> Iterator[None]:
    """Within the block requests of more than `size` bytes are refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "MAX_BODY", size)
        yield


@contextmanager
def gather_stream_events(per_second: int) -> Iterator[None]:
    """Within the block all streams together send `per_second` events, and tokens gather meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_pacing, "_EVENTS", per_second)
        yield


@contextmanager
def render_in_threads(above: int) -> Iterator[None]:
    """Within the block prompts of more than `above` characters are rendered in threads of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompt, "LONG_PROMPT", above)
        yield
