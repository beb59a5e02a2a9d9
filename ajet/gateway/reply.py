"""Reply: one reply while it is sampled and afterwards, and its readers.

Invariant: a reader receives the complete reply from the beginning, however late the reader joins, in chunks that add up
to the message; no reader delays the engine. At a busy gateway, all pending output goes to the readers in one chunk. All
code here runs on the gateway's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ajet.engine.contract import TokenRequest
from ajet.gateway.request import ParsedRequest
from ajet.schema.call import Call, FinishReason, VersionRun
from ajet.tokens import Rendered
from ajet.tokens.parsing import Delta, ReplyStream

TopLogprobs = Sequence[list[tuple[int, float]]]
"""For each token the most likely tokens as (id, log-probability at temperature 1)."""


@dataclass(slots=True)
class ReplyChunk:
    """The next part of a reply, for streaming. `ids`, `logprobs` (temperature 1) and `top` align.

    The ids may be ahead of `deltas` or behind, since deltas wait for complete characters and tags.
    """

    deltas: list[Delta]
    ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    top: TopLogprobs = ()
    prompt_tokens: int = 0
    """Tokens of the prompt; 0 for a chat engine, whose tokens are unknown."""


@dataclass(slots=True, eq=False)
class Reply:
    """One reply to a request.

    A draw is one attempt to sample the reply. A draw that violates the request's format is rejected and followed by
    another.
    """

    request: ParsedRequest
    needs_task: bool = True
    """True if no task samples the reply: before the first client, and after all clients left an incomplete reply."""
    task: asyncio.Task[None] | None = None
    """The latest task for the reply."""
    maker: asyncio.Task[None] | None = None
    """The latest task that sampled. After a client came back, `task` waits for the end of `maker`."""
    has_place: bool = False
    """True while the reply occupies a concurrency slot of the gateway."""
    call: Call | None = None
    """The record of the current draw; `None` before the first draw."""
    rejections: int = 0
    """Draws that did not satisfy the request."""

    # The current draw of a token engine.
    token_request: TokenRequest | None = None
    """The first engine request of the draw; `None` if a new draw must begin."""
    prompt: Rendered | None = None
    stream: ReplyStream | None = None
    """Parses the sampled ids; `None` for a chat engine."""
    engine_requests: int = 0
    """Number of engine requests of this draw: more than one if the client left and came back."""
    engine_finish: FinishReason | None = None
    """The finish reason of the engine; `None` while the engine may sample more."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    unit_logprobs: list[float] = field(default_factory=list)
    """Logprobs at temperature 1, as sent to clients."""
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    versions: list[VersionRun] = field(default_factory=list)
    routed_experts: npt.NDArray[np.integer[Any]] | None = None
    """As in `TokenChunk`."""

    # What readers may see.
    is_readable: bool = False
    """True once the reply is final. Before, it may be rejected and sampled again."""
    deltas: list[Delta] = field(default_factory=list)
    """Deltas of a chat engine; `stream` holds the deltas of a token engine."""
    chunk_ends: list[tuple[int, int]] = field(default_factory=list)
    """(deltas, ids) at the ends of chunks that are sent separately."""
    listeners: list[Callable[[], None]] = field(default_factory=list)
    has_news: bool = False
    """True from a notification of the listeners until the next read."""

    # The complete reply.
    message: dict[str, Any] | None = None
    """The message in OpenAI's shape, tool calls with ids; `None` until the reply is complete."""
    finish: FinishReason = "stop"
    prompt_tokens: int | None = None
    """`None`, like `completion_tokens`, if the server of a chat engine did not count tokens."""
    completion_tokens: int | None = None
    stopped: str | None = None
    """The stop string that ended the reply."""

    def add_deltas(self, deltas: Sequence[Delta]) -> None:
        """Add the next part of a chat engine's reply."""
        self.deltas += deltas
        self.chunk_ends.append((len(self.deltas), 0))
        self.notify()

    def notify(self) -> None:
        """Call the listeners because of new output. Further calls do nothing until a reader has read."""
        if not self.has_news:
            self.has_news = True
            for listen in self.listeners:
                listen()


class ReplyReader:
    """The position of one streaming client in a reply."""

    def __init__(self, reply: Reply, listen: Callable[[], None]) -> None:
        """Start reading. `listen` is called on new output."""
        self.reply, self._on_delta = reply, listen
        self._deltas = self._ids = self._chunk_ends = 0
        reply.listeners.append(listen)

    def close(self) -> None:
        """Stop the notifications of this reader."""
        self.reply.listeners.remove(self._on_delta)

    def read_chunks(self) -> list[ReplyChunk]:
        """Return the chunks since the last call. [] while the reply may still be rejected."""
        reply, stream = self.reply, self.reply.stream
        reply.has_news = False
        chunks: list[ReplyChunk] = []
        if reply.is_readable:
            while self._chunk_ends < len(reply.chunk_ends):
                self._add_chunk(chunks, *reply.chunk_ends[self._chunk_ends])
                self._chunk_ends += 1
        if stream is not None and reply.is_readable:
            stream.feed(reply.ids[stream.id_count :])
            self._add_chunk(chunks, len(stream.deltas), stream.id_count)
        return chunks

    def _add_chunk(self, chunks: list[ReplyChunk], deltas: int, ids: int) -> None:
        """Add the output between the reader's position and the given position as a chunk, if there is any.

        Args:
            chunks: The list to extend.
            deltas: Number of deltas up to the end of the chunk.
            ids: Number of token ids up to the end of the chunk.
        """
        first_delta, known_ids = self._deltas, self._ids
        if deltas <= first_delta and ids <= known_ids:
            return
        self._deltas, self._ids = deltas, ids
        reply = self.reply
        if reply.stream is None:
            chunks.append(ReplyChunk(reply.deltas[first_delta:deltas]))
            return
        assert reply.call is not None and reply.prompt is not None
        deltas_with_ids = [_with_call_ids(delta, reply.call.index) for delta in reply.stream.deltas[first_delta:deltas]]
        tokens = reply.ids[known_ids:ids], reply.unit_logprobs[known_ids:ids], reply.top[known_ids:ids]
        chunks.append(ReplyChunk(deltas_with_ids, *tokens, prompt_tokens=len(reply.prompt.ids)))


def _with_call_ids(delta: Delta, call: int) -> Delta:
    """Return a delta whose tool calls have ids. A delta without tool calls is returned unchanged."""
    if "tool_calls" not in delta:
        return delta
    return {
        "tool_calls": [{"id": tool_call_id(call, tool_call["index"]), **tool_call} for tool_call in delta["tool_calls"]]
    }


def tool_call_id(call: int, position: int) -> str:
    """Return the id of a tool call. Models sample no ids.

    Args:
        call: Index of the model call in its session: ids are unique in a session.
        position: Number of the tool call in the reply, the same in deltas and in the complete message.
    """
    return f"call_{call}_{position}"
