"""A bare relay: an ASGI app that reads a request as JSON, writes the engine's tokens as events, and does nothing else.

Invariant: it has no template, no tokeniser and no capture. It writes a token an event, or, where it gathers, as many
events as the gateway's own rule makes of them (ajet/gateway/reply.py), so that beside the gateway it does no
more and no less of that work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from ajet.engine.contract import DrawKey, Sampling, TokenChunk, TokenRequest
from ajet.gateway.stream_pacing import StreamPacing


def relay(engine: Any, prompt: Any, words: Mapping[int, str], *, tokens: int, gathers: int = 0) -> Any:
    """The app. `words`: what each token of the engine reads as. `gathers`: for so many clients, all of whom wait for
    replies at all times; 0: it does not, and each token is an event."""
    sampling, pacing = Sampling(tokens), StreamPacing()
    pacing.clients = gathers

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] != "POST":  # litellm asks for models when it starts
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        asked = json.loads(body)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": asked["model"]}
        finish = None
        chunks = engine.generate(TokenRequest(prompt, sampling, DrawKey(0, 0, 0, 0)))
        async for some in gathered(chunks, pacing) if gathers else alone(chunks):
            finish = some[-1].finish
            delta = {"role": "assistant", "content": "".join(words[token] for chunk in some for token in chunk.ids)}
            event = {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            data = b"data: " + json.dumps(event).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": data, "more_body": True})
        event = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        data = b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": False})

    return app


def canned(reply: bytes) -> Any:
    """An app that answers each request with these bytes, in one part: what the server under an app takes by itself."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": reply, "more_body": False})

    return app


async def alone(chunks: AsyncIterator[TokenChunk]) -> AsyncIterator[list[TokenChunk]]:
    """Each as it comes."""
    async for chunk in chunks:
        yield [chunk]


async def gathered(chunks: AsyncIterator[TokenChunk], pacing: StreamPacing) -> AsyncIterator[list[TokenChunk]]:
    """What has come since the last, after as long a rest as the gateway's rule says, or at the end: as the gateway's
    exchange does it, with a task that reads the engine, and a timer."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    held: list[TokenChunk] = []
    rest: asyncio.Future[None] | None = None
    ended = False

    def rise() -> None:
        if rest is not None and not rest.done():
            rest.set_result(None)

    async def read() -> None:
        nonlocal ended
        try:
            async for chunk in chunks:
                held.append(chunk)
                news.set()
        finally:
            ended = True
            news.set()
            rise()

    reading = asyncio.ensure_future(read())
    try:
        while not ended or held:
            await news.wait()
            news.clear()
            some, held[:] = list(held), []
            if some and pacing.is_busy:
                yield some
            else:
                for chunk in some:
                    yield [chunk]
            if some and not ended and (breath := pacing.flush_interval):
                due, rest = loop.time() + breath, loop.create_future()
                timer = loop.call_at(due, rise)
                await rest
                timer.cancel()
                if not ended:
                    pacing.add_lateness(max(0.0, loop.time() - due))
    finally:
        await reading
