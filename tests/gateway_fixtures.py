"""A gateway over a scripted engine, and clients of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import openai

from ajet.engine.contract import Sampling
from ajet.engine.scripted import ScriptedEngine, ScriptedReply
from ajet.gateway import Gateway, Session
from ajet.schema.endpoint import Endpoint
from ajet.tokens import Renderer
from tests.chat_templates import tokenizer

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 2?"}]


@dataclass
class Bench:
    """One gateway, its engine and renderer."""

    gateway: Gateway
    engine: Any
    renderer: Renderer

    def open(self, **options: Any) -> Session:
        settings: dict[str, Any] = {"key": (7, 3, 1), "sampling": Sampling(200, temperature=0.9), "trainable": None}
        return self.gateway.open("episode", **{**settings, **options})

    def ids(self, text: str, *, ended: bool = True) -> list[int]:
        ids = self.renderer.encode(text).tolist()
        return [*ids, self.renderer.end_ids[0]] if ended else ids


@contextmanager
def bench(
    script: Any = (), *, style: str = "qwen25", words: Renderer | None = None, engine: Any = None, **options: Any
) -> Iterator[Bench]:
    """`words`: the renderer, instead of that of a `style`. `script` and the options latency, chunk and pace are the
    engine's; the rest goes to the Gateway."""
    renderer = words or Renderer(tokenizer(style))
    scripted = {name: options.pop(name) for name in ("latency", "chunk", "pace", "version") if name in options}
    engine = engine or ScriptedEngine(
        script, encode=lambda text: renderer.encode(text).tolist(), end_id=renderer.end_ids[0], **scripted
    )
    limits = {"max_model_len": 2000, "max_response_tokens": 500, **options}
    gateway = Gateway(engine, renderer, **limits).start()
    try:
        yield Bench(gateway, engine, renderer)
    finally:
        gateway.close()


def client_of(endpoint: Endpoint, *, in_process: bool = True, **options: Any) -> openai.AsyncOpenAI:
    """An unmodified AsyncOpenAI client."""
    http = httpx.AsyncClient(transport=endpoint.transport()) if in_process and endpoint.transport else None
    return openai.AsyncOpenAI(
        base_url=endpoint.base_url, api_key=endpoint.api_key, http_client=http, max_retries=0, **options
    )


def post(endpoint: Endpoint, body: Any, *, key: str | None = None) -> httpx.Response:
    """A raw request over the loopback port; `body` bytes are sent as they are."""
    headers = {"authorization": f"Bearer {key or endpoint.api_key}", "content-type": "application/json"}
    sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    return httpx.post(f"{endpoint.base_url}/chat/completions", headers=headers, timeout=60, **sent)


def spelled_out(bench_: Bench, text: str) -> ScriptedReply:
    """A reply sampled one character a token, as no encoder would spell it."""
    ids = np.concatenate([bench_.renderer.encode(letter) for letter in text]).tolist()
    return ScriptedReply(ids=[*ids, bench_.renderer.end_ids[0]], ended=False)
