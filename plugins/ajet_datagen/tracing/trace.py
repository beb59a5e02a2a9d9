"""Trace: one reply of an agent's model, in its conversation, and what people thought of it.

Invariant: messages have the shape of Chat Completions, whatever they came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ajet.schema.messages import extract_text
from ajet.schema.settled import make_storable
from ajet.schema.task import find_non_finite

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyRating:
    """People's word on a reply; None: nothing was said."""

    reward: float | None = None
    liked: bool | None = None
    corrected: str | None = None
    """What should have been said."""
    comment: str | None = None

    @property
    def score(self) -> float | None:
        """The number; a like is 1, a dislike 0."""
        return self.reward if self.reward is not None or self.liked is None else float(self.liked)

    def update_with(self, later: ReplyRating) -> ReplyRating:
        """This rating with what was said later, which holds where both say something."""
        ratings = {name: value for name in self.__slots__ if (value := getattr(later, name)) is not None}
        return replace(self, **ratings)


@dataclass(frozen=True, slots=True)
class AgentTrace:
    """`where`: its place, for people."""

    where: str
    messages: tuple[Message, ...]
    reply: Message
    tools: tuple[Message, ...] = ()
    agent: str = ""
    model: str = ""
    session: str = ""
    id: str = ""
    """Of the reply, as its endpoint gave it."""
    rating: ReplyRating = ReplyRating()
    is_rated_alone: bool = False
    """The rating is of this reply and not of the whole conversation."""
    episode: str = ""
    """Of an observed run: several may have one session's name."""

    @property
    def question(self) -> str:
        """The question: the text of the first user's message."""
        return next((extract_text(each) for each in self.messages if each.get("role") == "user"), "")

    def repair_text(self) -> AgentTrace:
        """Without halves of letters, which no file can hold. Raises ValueError where it is nested too deeply, or holds
        a number that is not finite."""
        names = ("where", "messages", "reply", "tools", "agent", "model", "session", "id", "episode")
        given = {name: getattr(self, name) for name in names}
        given |= {"messages": list(self.messages), "tools": list(self.tools), "rating": asdict(self.rating)}
        if (number := find_non_finite(given)) is not None:
            raise ValueError(f"it holds a number that is not finite ({number[0]})")
        found: dict[str, Any] = make_storable(given)
        if found is given:
            return self
        lists: dict[str, Any] = {name: tuple(found.pop(name)) for name in ("messages", "tools")}
        return replace(self, rating=ReplyRating(**found.pop("rating")), **lists, **found)

    def is_extended_by(self, other: AgentTrace) -> bool:
        """Whether the other goes on from its reply."""
        here = len(self.messages)
        if len(other.messages) <= here or other.messages[:here] != self.messages:
            return False
        return reply_key(other.messages[here]) == reply_key(self.reply)


def reply_key(message: Mapping[str, Any]) -> tuple[str, str]:
    """The text of a reply, and names and arguments of its calls, by which two are the same."""
    calls = [(each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls") or ()]
    return extract_text(message), json.dumps(calls)


def select_last(traces: Sequence[AgentTrace]) -> list[AgentTrace]:
    """The traces of one session that no other goes on from, and those with a rating of their own."""
    return [
        trace
        for at, trace in enumerate(traces)
        if trace.is_rated_alone or not any(trace.is_extended_by(other) for other in traces[at + 1 :])
    ]
