"""An engine that one can look at while it answers: which replies are under way, how many tokens, the newest words.

Invariant: what is sampled passes through unchanged; whoever looks reads and never waits. The words are decoded by who
looks, when it looks.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from ajet.engine.contract import ChatEngine, EngineWrapper, TokenChunk, TokenEngine, TokenRequest

TAIL = 48
"""Tokens of a reply that are decoded for a look."""


@dataclass(slots=True, eq=False)
class UnderWay:
    """A reply that is being made."""

    name: str
    """Whose: "task 0, attempt 1"."""
    tokens: int = 0
    newest: list[int] = field(default_factory=list)
    words: str = ""
    """Of a chat engine, which has no ids."""


class Watch:
    """An engine's replies under way, and its tokens since the first."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.under_way: list[UnderWay] = []
        self.prompt_tokens = self.sampled_tokens = 0
        self.began: float | None = None
        """When the first reply was asked for, monotonic."""

    def begin(self, name: str, prompt_tokens: int = 0) -> UnderWay:
        """A reply is asked for."""
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
        """Forget a reply that is complete, or given up."""
        self.under_way.remove(reply)

    def newest_words(self) -> tuple[UnderWay, str] | None:
        """The end of the reply that is under way for longest; None while there is none."""
        for reply in self.under_way[:1]:
            return reply, reply.words or (self._tokenizer.decode(reply.newest) if reply.newest else "")
        return None


class WatchedEngine(EngineWrapper):
    """A TokenEngine around another one."""

    def __init__(self, engine: TokenEngine, tokenizer: Any) -> None:
        super().__init__(engine)
        self.watch = Watch(tokenizer)

    async def generate(self, request: TokenRequest) -> AsyncIterator[TokenChunk]:
        """Pass on, and count."""
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
        """The inner engine's, if it has one."""
        return self._enter_inner("paused")

    def held(self) -> AbstractContextManager[object]:
        """The inner engine's, if it has one."""
        return self._enter_inner("held")

    def _enter_inner(self, name: str) -> AbstractContextManager[object]:
        made = getattr(self._engine, name, None)
        return nullcontext() if made is None else cast(AbstractContextManager[object], made())

    def weights_changed(self, version: int) -> None:
        """Passed on."""
        self._engine.weights_changed(version)

    def close(self) -> None:
        """Passed on."""
        self._engine.close()


class WatchedChat:
    """A ChatEngine around another one; of a reply that does not stream nothing is seen before its end."""

    def __init__(self, engine: ChatEngine) -> None:
        self._engine, self.watch = engine, Watch(None)

    async def chat(self, request: dict[str, Any]) -> dict[str, Any]:
        """Pass on."""
        reply = self.watch.begin("a reply of the endpoint")
        try:
            return await self._engine.chat(request)
        finally:
            self.watch.end(reply)

    async def stream(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Pass on, and keep the newest words."""
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
        """Passed on."""
        self._engine.close()
