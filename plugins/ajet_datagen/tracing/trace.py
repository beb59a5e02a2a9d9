"""A trace: one model reply of an agent, in its conversation, with its rating.

Invariant: messages have Chat Completions format, whatever their source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ajet.schema.settled import make_storable
from ajet.schema.task import extract_text, find_non_finite

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyRating:
    """People's rating of a reply: score, like or dislike, and corrected text. A missing field is None."""

    reward: float | None = None
    liked: bool | None = None
    corrected: str | None = None
    """Text of the corrected reply."""
    comment: str | None = None

    @property
    def score(self) -> float | None:
        """The reward of the rating: its number, else 1 for a like and 0 for a dislike."""
        return self.reward if self.reward is not None or self.liked is None else float(self.liked)

    def update_with(self, later: ReplyRating) -> ReplyRating:
        """Return this rating with the set fields of a later rating in place of its own."""
        ratings = {name: value for name in self.__slots__ if (value := getattr(later, name)) is not None}
        return replace(self, **ratings)


@dataclass(frozen=True, slots=True)
class AgentTrace:
    """One reply of an agent with the conversation before it. `where` is its place, for messages."""

    where: str
    messages: tuple[Message, ...]
    reply: Message
    tools: tuple[Message, ...] = ()
    agent: str = ""
    model: str = ""
    session: str = ""
    id: str = ""
    """Id of the reply, from its endpoint."""
    rating: ReplyRating = ReplyRating()
    is_rated_alone: bool = False
    """True if the rating is of this reply, not of the conversation."""
    episode: str = ""
    """Episode of an observed run; several episodes may share a session name."""

    @property
    def question(self) -> str:
        """The text of the first user message."""
        return next((extract_text(message) for message in self.messages if message.get("role") == "user"), "")

    def repair_text(self) -> AgentTrace:
        """Return the trace without lone surrogates, so that it can be stored as UTF-8.

        Raises:
            ValueError: it is nested too deeply, or contains a non-finite number.
        """
        names = ("where", "messages", "reply", "tools", "agent", "model", "session", "id", "episode")
        values = {name: getattr(self, name) for name in names}
        values |= {"messages": list(self.messages), "tools": list(self.tools), "rating": asdict(self.rating)}
        if (number := find_non_finite(values)) is not None:
            raise ValueError(f"it contains a non-finite number ({number[0]})")
        repaired: dict[str, Any] = make_storable(values)
        if repaired is values:
            return self
        tuples: dict[str, Any] = {name: tuple(repaired.pop(name)) for name in ("messages", "tools")}
        return replace(self, rating=ReplyRating(**repaired.pop("rating")), **tuples, **repaired)

    def is_extended_by(self, other: AgentTrace) -> bool:
        """True if the other trace's conversation contains this reply and continues from it."""
        own_length = len(self.messages)
        if len(other.messages) <= own_length or other.messages[:own_length] != self.messages:
            return False
        return reply_key(other.messages[own_length]) == reply_key(self.reply)


def reply_key(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text and tool calls of a reply, as a key for equality."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return extract_text(message), json.dumps(calls)


def select_last(traces: Sequence[AgentTrace]) -> list[AgentTrace]:
    """Return traces of a session that no other trace continues, and individually rated ones."""
    return [
        trace
        for index, trace in enumerate(traces)
        if trace.is_rated_alone or not any(trace.is_extended_by(other) for other in traces[index + 1 :])
    ]
