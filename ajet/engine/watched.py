"""Observes an engine while it answers: running replies, their token counts and newest words.

Invariant: samples pass through unchanged, and observers never wait. Words are decoded only when observed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from ajet.engine.contract import ChatEngine, EngineWrapper, TokenChunk, TokenEngine, TokenRequest

TAIL = 48
"""Number of last tokens decoded for display."""


@dataclass(slots=True, eq=False)
class UnderWay:
    """A reply in progress, with its newest tokens."""

    name: str
    """Display name, such as "task 0, attempt 1"."""
    tokens: int = 0
    newest: list[int] = field(default_factory=list)
    words: str = ""
    """Newest words of a chat engine, because it has no ids."""


class Watch:
    """Running replies of an engine, and token counts since its first reply."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.under_way: list[UnderWay] = []
        self.prompt_tokens = self.sampled_tokens = 0
        self.began: float | None = None
        """Monotonic time of the first request."""

    def begin(self, name: str, prompt_tokens: int = 0) -> UnderWay:
        """Register a new reply and return it."""
        self.began = time.monotonic() if self.began is None else self.began
        self.prompt_tokens += prompt_tokens
        reply = UnderWay(name)
        self.under_way.append(reply)
        return reply

    def add(self, reply: UnderWay, ids: list[int]) -> None:
        """Count `ids` as the next tokens of a reply."""
        reply.tokens += len(ids)
        reply.newest = [*reply.newest, *ids][-TAIL:]
        self.sampled_tokens += len(ids)

    def end(self, reply: UnderWay) -> None:
        """Remove a completed or cancelled reply."""
        self.under_way.remove(reply)

    def newest_words(self) -> tuple[UnderWay, str] | None:
        """Return the oldest running reply and the text of its newest tokens, or None if no reply is running."""
        for reply in self.under_way[:1]:
            return reply, reply.words or (self._tokenizer.decode(reply.newest) if reply.newest else "")
        return None


class WatchedEngine(EngineWrapper):
    """A TokenEngine that counts the tokens of an inner engine."""

    def __init__(self, engine: TokenEngine, tokenizer: Any) -> None:
        super().__init__(engine)
        self.watch = Watch(tokenizer)

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Stream the inner engine's reply and count its tokens."""
        name = f"task {request.key.task}, attempt {request.key.repeat}"
        reply = self.watch.begin(name, len(request.prompt_ids))
        try:
            async with aclosing(cast(Any, self._engine.generate(request))) as chunks:
                async for chunk in chunks:
                    self.watch.add(reply, chunk.ids)
                    yield chunk
        finally:
            self.watch.end(reply)

    def paused(self) -> AbstractContextManager[object]:
        """Pause the inner engine if supported."""
        return self._enter_inner("paused")

    def held(self) -> AbstractContextManager[object]:
        """Hold the inner engine's next step if supported."""
        return self._enter_inner("held")

    def _enter_inner(self, name: str) -> AbstractContextManager[object]:
        """Return the inner engine's context manager of this name, or one without effect if the engine lacks it."""
        make_context = getattr(self._engine, name, None)
        return nullcontext() if make_context is None else cast(AbstractContextManager[object], make_context())


class WatchedChat:
    """A ChatEngine around an inner one; replies without streaming become visible only at their end."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine, self.watch = engine, Watch(None)

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the inner engine's reply."""
        reply = self.watch.begin("a reply of the endpoint")
        try:
            return await self._engine.chat(request)
        finally:
            self.watch.end(reply)

    async def stream(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Stream the inner engine's reply and store its newest words."""
        reply = self.watch.begin("a reply of the endpoint")
        try:
            async with aclosing(cast(Any, self._engine.stream(request))) as chunks:
                async for chunk in chunks:
                    for choice in chunk.get("choices") or ():
                        reply.words = (reply.words + str((choice.get("delta") or {}).get("content") or ""))[-400:]
                    yield chunk
        finally:
            self.watch.end(reply)

    def close(self) -> None:
        """Close the inner engine and its resources."""
        self._engine.close()
