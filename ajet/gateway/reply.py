"""Reply: one turn's reply while it is made, and whoever reads it.

Invariant: a reader hears the whole reply from its beginning whenever it comes, in pieces that add up to the message;
no reader holds up the engine. What the engine is ahead of the readers goes to them in one piece when the gateway is
busy, chunk by chunk otherwise. All of it on the gateway's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ajet.engine.contract import DrawKey, Sampling
from ajet.gateway.capture import Entry, Sampled
from ajet.gateway.tool_call_ids import call_ids
from ajet.gateway.turn import Piece, Turn, TurnRequest
from ajet.schema.call import FinishReason
from ajet.tokens import Rendered
from ajet.tokens.parsing import Delta
from ajet.tokens.stream import ReplyStream


@dataclass(slots=True, eq=False)
class Draft:
    """A token engine's reply to one prompt: what was sampled, and how it reads."""

    entry: Entry
    prompt: Rendered
    stream: ReplyStream
    sampling: Sampling
    draw: DrawKey
    images: tuple[str, ...] = ()
    """The prompt's, as data: URLs."""
    sampled: Sampled = field(default_factory=Sampled)
    finish: FinishReason | None = None
    """What the engine ended it with; None while there may be more."""
    begun: int = 0
    """How often sampling was begun: more than once where a client left and came back."""

    def catch_up(self) -> None:
        """Read what was sampled and not read yet."""
        self.stream.feed(self.sampled.ids[self.stream.kept :])


class Reply:
    """One reply. Its maker shows it (`show` a draft, or `tell` deltas) and calls `news`; readers are `Reader`s."""

    def __init__(self, request: TurnRequest, *, streamed: bool = False) -> None:
        self.request, self.streamed = request, streamed
        self.task: asyncio.Task[Turn] | None = None
        """Makes it; None before."""
        self.left = False
        """Its making was cancelled because nobody waited for it any more."""
        self.entry: Entry | None = None
        """Of its call; None before there is one."""
        self.draft: Draft | None = None
        """What may be gone on with when the client comes back."""
        self.rejected = 0
        """Drafts that were not what the client asked for."""
        self.shown: Draft | None = None
        self.told: list[Delta] = []
        self.marks: list[tuple[int, int]] = []
        """(deltas, ids) at the ends of chunks."""
        self.listeners: list[Callable[[], None]] = []
        self._heard = True
        """Somebody has read since the last news."""

    @property
    def turn(self) -> Turn | None:
        """The finished turn; None while it is made, and where it failed."""
        task = self.task
        made = task is not None and task.done() and not task.cancelled() and task.exception() is None
        return task.result() if task is not None and made else None

    def show(self, draft: Draft) -> None:
        """This is the reply; readers may hear it."""
        self.shown = draft

    def tell(self, piece: Piece) -> None:
        """A chat engine's piece."""
        self.told += piece.deltas
        self.marks.append((len(self.told), 0))
        self.news()

    def news(self) -> None:
        """There is more, or an end: once for all that comes before somebody reads."""
        if self._heard:
            self._heard = False
            for listen in self.listeners:
                listen()

    def read(self) -> None:
        """Somebody reads: later news are told again."""
        self._heard = True

    def mark(self) -> None:
        """A chunk ends here."""
        if self.shown is not None:
            self.marks.append((len(self.shown.stream.deltas), self.shown.stream.kept))


class Reader:
    """One client's place in a reply. `listen` is called at every news."""

    def __init__(self, reply: Reply, listen: Callable[[], None]) -> None:
        self.reply, self._listen = reply, listen
        self._deltas = self._ids = self._mark = 0
        self._give_ids: Callable[[list[Delta]], list[Delta]] | None = None
        reply.listeners.append(listen)

    def close(self) -> None:
        """Read no more."""
        self.reply.listeners.remove(self._listen)

    def read(self) -> list[Piece]:
        """The pieces that are new."""
        reply, draft = self.reply, self.reply.shown
        reply.read()
        pieces: list[Piece] = []
        while self._mark < len(reply.marks):
            self._piece(pieces, *reply.marks[self._mark])
            self._mark += 1
        if draft is not None:
            if draft.stream.kept < len(draft.sampled.ids):
                draft.catch_up()
            self._piece(pieces, len(draft.stream.deltas), draft.stream.kept)
        return pieces

    def _piece(self, pieces: list[Piece], deltas: int, ids: int) -> None:
        first, known = self._deltas, self._ids
        if deltas <= first and ids <= known:
            return
        self._deltas, self._ids = deltas, ids
        draft = self.reply.shown
        if draft is None:
            pieces.append(Piece(self.reply.told[first:deltas]))
            return
        if self._give_ids is None:
            self._give_ids = call_ids(draft.entry.call.index)
        told, sampled = draft.stream.deltas[first:deltas], draft.sampled
        new = sampled.ids[known:ids], sampled.logprobs_unit[known:ids], sampled.top[known:ids]
        pieces.append(Piece(self._give_ids(told), *new, prompt_tokens=len(draft.prompt.ids)))
