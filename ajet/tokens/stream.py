"""ReplyStream: ids of one reply in, deltas of its message out, stop strings found on the way.

Invariant: fed in any pieces, the deltas add up to what feeding everything at once gives; a stop string's text and
what follows never reach a delta, and `kept` counts the ids up to and including the token that completed it. The text
of the ids comes from `IncrementalDecoder`: its pieces joined are the text of all ids decoded at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from ajet.schema.call import Ids
from ajet.tokens.parsing import Delta, Parser, assemble


class ReplyStream:
    """One reply, incrementally. `end_ids` end it and are no part of its text; `single_call` ends it after the first
    tool call."""

    def __init__(
        self,
        decoder: IncrementalDecoder,
        parser: Parser,
        end_ids: Sequence[int],
        stop: Sequence[str] = (),
        single_call: bool = False,
    ) -> None:
        self._decoder, self._parser = decoder, parser
        self._end_ids, self._stop, self._single = frozenset(end_ids), tuple(stop), single_call
        self._hold = max((len(text) for text in self._stop), default=1) - 1
        self._tail = ""
        self.deltas: list[Delta] = []
        """What was said so far."""
        self._closed = False
        self._called = False
        self.kept = 0
        """Ids that belong to the reply; fewer than were fed when it was cut."""
        self.stopped: str | None = None
        """The stop string that was found."""

    @property
    def cut(self) -> bool:
        """True once nothing more is wanted: a stop string was found, or the one tool call is complete."""
        return self.stopped is not None or (self._single and self._called)

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """More sampled ids; what they make certain of the message."""
        if not self._stop and not self._single:
            self.kept += len(ids)
            text = self._decoder.feed([token for token in ids if token not in self._end_ids])
            return self._keep(self._parser.feed(text)) if text else []
        deltas: list[Delta] = []
        for token in ids:
            if self.cut:
                break
            self.kept += 1
            if token not in self._end_ids:
                deltas += self._keep(self._search(self._decoder.feed([token])))
        return deltas

    def begin(self, forced: str) -> None:
        """The beginning of this reply that the prompt already holds."""
        self._keep(self._parser.feed(forced))

    def close(self) -> list[Delta]:
        """The reply has ended; what was held back."""
        if self._closed:
            return []
        self._closed = True
        deltas: list[Delta] = []
        if not self.cut:
            deltas += self._search(self._decoder.close())
        if not self.cut and self._tail:
            deltas += self._parser.feed(self._tail)
        return self._keep(deltas + self._parser.close())

    def message(self) -> dict[str, Any]:
        """The whole message, in OpenAI's shape (tool calls without ids). Ends the stream."""
        self.close()
        return assemble(self.deltas)

    @property
    def raw(self) -> str:
        """The text after the reasoning, as sampled."""
        return self._parser.raw

    def _search(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._tail += text
        found = [(at, stop) for stop in self._stop if (at := self._tail.find(stop)) >= 0]
        if found:
            at, self.stopped = min(found)
            ready, self._tail = self._tail[:at], ""
        else:
            cut = max(0, len(self._tail) - self._hold)
            ready, self._tail = self._tail[:cut], self._tail[cut:]
        return self._parser.feed(ready) if ready else []

    def _keep(self, deltas: list[Delta]) -> list[Delta]:
        if self._single:
            calls = [delta for delta in deltas if "tool_calls" in delta]
            for extra in calls if self._called else calls[1:]:
                deltas.remove(extra)
            self._called = self._called or bool(calls)
        self.deltas += deltas
        return deltas


_WINDOW = 24


class IncrementalDecoder:
    """Turns one reply's ids into text; `decode` maps a list of ids to its text, special tokens included. `bytewise`: it
    puts the bytes of each together, so that no context is needed.

    A character whose bytes are split over tokens comes out complete, with the token that completes it. The context
    token in front makes tokenizers that strip a leading space (SentencePiece) decode a continuation as a continuation.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], context: int | None = None, *, bytewise: bool = False
    ) -> None:
        self._decode = decode
        self._bytewise = bytewise
        context = None if bytewise else context
        self._window: list[int] = [] if context is None else [context]
        self._context = "" if context is None else decode([context])
        self._given = len(self._context)

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these ids make certain."""
        self._window.extend(ids)
        text = self._decode(self._window)
        ready = len(text.rstrip("\ufffd"))
        piece = text[self._given : ready]
        if self._bytewise and ready == len(text):
            self._window, self._given = [], 0
            return piece
        self._given = max(self._given, ready)
        if len(self._window) > _WINDOW and ready == len(text):
            self._window = self._window[-1:]
            text = self._decode(self._window)
            if text.endswith("\ufffd"):  # the last token only completes a character: keep one that stands alone
                self._window, self._given = [], 0
            else:
                self._given = len(text)
        return piece

    def close(self) -> str:
        """The text that was held back: bytes that never became a character, as replacement characters."""
        return self._decode(self._window)[self._given :] if self._window else ""


def span_of_text(decode: Callable[[Ids], str], ids: Ids, piece: str) -> tuple[int, int] | None:
    """Return [start, stop) within `ids` of the first occurrence of `piece`; None without one.

    The tokens are the fewest whose texts hold the complete piece; a token that holds more than its beginning or end
    belongs to it. `decode` returns the text of ids, and is called about 2 log2(N) times.
    """
    text = decode(ids)
    begin = text.find(piece)
    if begin < 0 or not piece:
        return None
    end = begin + len(piece)
    counts = range(ids.size + 1)
    first = bisect_left(counts, begin + 1, key=lambda count: len(decode(ids[:count])))
    last = bisect_left(counts, end, key=lambda count: len(decode(ids[:count])))
    while last < ids.size and not decode(ids[:last]).startswith(text[:end]):  # a character's bytes go on in the next
        last += 1
    return first - 1, last
