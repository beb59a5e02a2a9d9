"""What people said of an agent's work: a number, a like, the text that it should have said.

Invariant: what is not understood is refused by name; nothing is guessed. Of several words about the same the latest
holds. A corrected text says what would have been right, and by itself nothing about the reward.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ajet.gateway.request import Refused
from ajet.schema.episode import Verdict

SCORER = "feedback"
LIKED, DISLIKED = 1.0, 0.0
"""The rewards of a like and of a dislike without a number."""
_LONGEST = 1 << 20
_MOST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Feedback:
    """A person's word on a session, or, with `reply`, of one reply in it."""

    at: float
    """Seconds since the epoch."""
    session: str | None = None
    reply: str | None = None
    """Its id, as the endpoint gave it (chatcmpl-…, resp_…, msg_…)."""
    reward: float | None = None
    liked: bool | None = None
    corrected: str | None = None
    """What should have been said."""
    comment: str | None = None
    end: bool = False
    """The session is over."""

    @property
    def worth(self) -> float | None:
        """The number, or what a like stands for."""
        if self.reward is not None or self.liked is None:
            return self.reward
        return LIKED if self.liked else DISLIKED

    def row(self) -> dict[str, Any]:
        """The feedback as JSON values."""
        return {name: value for name, value in asdict(self).items() if value is not None and value is not False} | (
            {"liked": self.liked} if self.liked is not None else {}
        )


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("session", "reply", "corrected", "comment"), (str,)),
    "reward": (int, float),
    "liked": (bool,),
    "end": (bool,),
}


def read_feedback(body: Any, at: float) -> Feedback:
    """Raises Refused."""
    if not isinstance(body, Mapping):
        raise Refused("Expected a JSON object.", code="invalid_json")
    for name, value in body.items():
        kinds = _KINDS.get(name)
        if kinds is None:
            raise Refused(f"Unknown field '{name}': expected some of {', '.join(_KINDS)}.", param=str(name))
        if value is not None and (not isinstance(value, kinds) or (kinds != (bool,) and isinstance(value, bool))):
            raise Refused(f"Invalid value for '{name}': expected {_kind(kinds)}.", param=name, code="invalid_value")
        if isinstance(value, str) and not 0 < len(value) <= _LONGEST:
            raise Refused(f"Invalid value for '{name}': expected 1 to {_LONGEST} characters.", param=name)
    told = {name: value for name, value in body.items() if value is not None}
    if "reward" in told and not abs(told["reward"]) <= _MOST:
        raise Refused("Invalid value for 'reward': expected a finite number.", param="reward", code="invalid_value")
    if "session" not in told and "reply" not in told:
        raise Refused("Missing 'session' or 'reply': whose feedback is it?", param="session")
    if not set(told) - {"session", "reply"}:
        raise Refused("It says nothing: expected reward, liked, corrected, comment or end.", param="reward")
    return Feedback(at, **told)


def verdict_of(given: Sequence[Feedback]) -> Verdict | None:
    """What they come to: the word about the whole session, else the mean over the replies that have one. None where
    nothing was said."""
    rows = [each for each in given if each.row().keys() - {"at", "session", "reply", "end"}]
    if not rows:
        return None
    whole = [each.worth for each in rows if each.reply is None and each.worth is not None]
    by_reply = {each.reply: each.worth for each in rows if each.reply is not None and each.worth is not None}
    reward = whole[-1] if whole else sum(by_reply.values()) / len(by_reply) if by_reply else None
    likes = [each.liked for each in rows if each.liked is not None]
    details = {SCORER: [each.row() for each in rows]}
    return Verdict(reward, likes[-1] if likes else None, "said by people", details=details, scorer=SCORER)


def _kind(kinds: tuple[type, ...]) -> str:
    return {str: "a text", bool: "true or false"}.get(kinds[0], "a number")
