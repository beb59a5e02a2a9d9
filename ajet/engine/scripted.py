"""Engines with scripted replies, for tests and benchmarks.

Invariant: the engine contracts hold (slots freed on close, end ids included, versions and two kinds of logprobs). Calls
are cheap enough for ten thousand in parallel, and no result is random.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ajet.engine.contract import TokenChunk, TokenRequest
from ajet.schema.errors import EngineFailure


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One reply of a script.

    `text` needs an engine with an encoder; an end token is added unless `ended` is False. `latency` is in seconds, None
    for the engine's. A chunk has `chunk` tokens, 0 for all at once. The engine fails after `fail_after` tokens.
    """

    text: str | None = None
    ids: Sequence[int] | None = None
    ended: bool = True
    latency: float | None = None
    chunk: int = 0
    fail_after: int | None = None


TokenScript = (
    Sequence["ScriptedReply | str | Sequence[int]"] | Callable[[TokenRequest], "ScriptedReply | str | Sequence[int]"]
)


def scripted_logprob(token: int) -> float:
    """Return ScriptedEngine's log-probability of a sampled token. At temperature 1 it is twice as large."""
    return -(1 + token % 97) / 128


class ScriptedEngine:
    """A TokenEngine that answers from a list (in order, then it fails) or from a function of the request.

    `encode` and `end_id` turn texts into ids (`renderer.encode`, `renderer.end_ids[0]`). `latency` seconds pass before
    the first chunk of each reply, `pace` seconds before each chunk. `running` counts running calls; `closed_early`
    counts calls with an iterator closed before its end.
    """

    constrains = False

    def __init__(
        self,
        script: TokenScript,
        *,
        encode: Callable[[str], Sequence[int]] | None = None,
        end_id: int | None = None,
        latency: float = 0.0,
        chunk: int = 0,
        pace: float = 0.0,
        version: int = 0,
        max_model_len: int = 1 << 20,
    ) -> None:
        self.version, self.max_model_len = version, max_model_len
        self.script = script
        self._encode, self._end_id = encode, end_id
        self._first_chunk_delay = latency
        self.chunk = chunk
        self._chunk_delay = pace
        self._lock = threading.Lock()
        self._waiting_futures: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._closed = False
        self._used = 0
        self.running = 0
        self.closed_early = 0
        self.requests = 0

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Stream the next scripted reply."""
        reply = self._take_reply(request)
        ids, finish = self._encode_reply(reply, request)
        with self._lock:
            self.running += 1
        is_done = False
        try:
            latency = self._first_chunk_delay if reply.latency is None else reply.latency
            if latency > 0:
                await self._wait_seconds(latency)
            step = reply.chunk or self.chunk or len(ids)
            stop = len(ids) if reply.fail_after is None else min(reply.fail_after, len(ids))
            # inlined scripted_logprob, because a function call per token is measurable
            token_logprobs = [-(1 + token % 97) / 128 for token in ids]
            unit_logprobs = [2 * logprob for logprob in token_logprobs]
            top = _make_alternatives(ids, request.sampling.top_logprobs)
            for begin in range(0, stop, max(step, 1)):
                if self._closed:
                    raise EngineFailure("the engine is closed")
                if self._chunk_delay > 0:
                    await self._wait_seconds(self._chunk_delay)
                end = min(begin + step, stop)
                is_last = end == len(ids) and reply.fail_after is None
                token_range = slice(begin, end)
                yield TokenChunk(
                    ids[token_range],
                    token_logprobs[token_range],
                    unit_logprobs[token_range],
                    self.version,
                    finish if is_last else None,
                    top[token_range],
                )
            if reply.fail_after is not None:
                raise EngineFailure(f"the scripted engine fails after {reply.fail_after} tokens, as its script says")
            if not ids:
                yield TokenChunk([], [], [], self.version, finish)
            is_done = True
        except EngineFailure:
            is_done = True
            raise
        finally:
            with self._lock:
                self.running -= 1
                self.closed_early += not is_done

    def weights_changed(self, version: int) -> None:
        """Set the version. Raises ValueError for an older one."""
        if version < self.version:
            raise ValueError(f"version {version} is older than the engine's version {self.version}")
        self.version = version

    def close(self) -> None:
        """Fail all waiting calls and refuse new ones."""
        self._closed = True
        with self._lock:
            waiting = list(self._waiting_futures.items())
        for future, loop in waiting:
            loop.call_soon_threadsafe(_fail_future, future)

    def _take_reply(self, request: TokenRequest) -> ScriptedReply:
        """Return the script's reply to the next request. Raises EngineFailure if the script has no more replies."""
        if self._closed:
            raise EngineFailure("the engine is closed")
        with self._lock:
            turn = self.requests
            self.requests += 1
        if callable(self.script):
            entry = self.script(request)
        elif turn < len(self.script):
            entry = self.script[turn]
        else:
            raise EngineFailure(f"the scripted engine's script has only {len(self.script)} replies")
        if isinstance(entry, ScriptedReply):
            return entry
        return ScriptedReply(text=entry) if isinstance(entry, str) else ScriptedReply(ids=entry, ended=False)

    def _encode_reply(self, reply: ScriptedReply, request: TokenRequest) -> tuple[list[int], Literal["stop", "length"]]:
        """Return the ids of a scripted reply, cut at the first stop id or the token limit, and the finish reason."""
        if reply.ids is not None:
            ids = [int(token) for token in reply.ids]
        elif self._encode is None:
            raise EngineFailure(
                "a scripted engine with text replies needs the argument encode=, a function from text to token ids"
            )
        else:
            ids = [int(token) for token in self._encode(reply.text or "")]
        if reply.ended and self._end_id is not None:
            ids.append(self._end_id)
        sampling = request.sampling
        ends = [index for index, token in enumerate(ids) if token in sampling.stop_ids]
        if ends and ends[0] < sampling.max_tokens:
            return ids[: ends[0] + 1], "stop"
        return ids[: sampling.max_tokens], "length"

    async def _wait_seconds(self, seconds: float) -> None:
        """Wait some seconds. `close` ends the wait with EngineFailure."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _wake_future, future)
        with self._lock:
            self._waiting_futures[future] = loop
        try:
            await future
        finally:
            timer.cancel()
            with self._lock:
                del self._waiting_futures[future]


def _make_alternatives(ids: Sequence[int], count: int) -> list[list[tuple[int, float]]]:
    """Return `count` fake alternatives per token."""
    if not count:
        return []
    return [[(token + offset, 2 * scripted_logprob(token) - offset) for offset in range(count)] for token in ids]


def _wake_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(EngineFailure("the engine was closed"))


ChatScript = Sequence[dict[str, Any] | str] | Callable[[dict[str, Any]], dict[str, Any] | str]


class ScriptedChat:
    """A ChatEngine that answers from a list or a function, with a text or an assistant message."""

    def __init__(self, script: ChatScript) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.running = 0

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the next scripted reply as a chat completion."""
        message = await self._answer_request(request)
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": request.get("model", "scripted"),
            "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    async def stream(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Stream the next scripted reply, one letter per chunk."""
        message = await self._answer_request(request)
        head = {"id": f"chatcmpl-{len(self.requests)}", "object": "chat.completion.chunk", "created": int(time.time())}
        head["model"] = request.get("model", "scripted")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": letter} for letter in message.get("content") or ""]
        for index, call in enumerate(message.get("tool_calls") or ()):
            deltas.append({"tool_calls": [{**call, "index": index}]})
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        for delta in deltas:
            yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}

    def close(self) -> None:
        """Does nothing, because no connection is open."""

    async def _answer_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the script's reply to the next request as a message. Raises EngineFailure if the script has no more
        replies.
        """
        turn = len(self.requests)
        self.requests.append(request)
        self.running += 1
        try:
            await asyncio.sleep(0)
        finally:
            self.running -= 1
        if callable(self.script):
            entry = self.script(request)
        elif turn < len(self.script):
            entry = self.script[turn]
        else:
            raise EngineFailure(f"the scripted engine's script has only {len(self.script)} replies")
        return {"role": "assistant", "content": entry} if isinstance(entry, str) else entry
