"""Feedback of people on an agent's work: a number, a like, or a corrected text.

Invariant: an unknown field is refused by name, without guessing. The latest feedback on the same session or reply
counts. A corrected text states the right answer, and has no effect on the reward.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError
from pydantic.dataclasses import dataclass

from ajet.gateway.request import Refused
from ajet.schema.episode import Verdict

SCORER = "feedback"
LIKED, DISLIKED = 1.0, 0.0
"""The rewards of a like and of a dislike without a number."""
_MAX_CHARS = 1 << 20
_Text = Annotated[str, Field(min_length=1, max_length=_MAX_CHARS)]
_Reward = Annotated[int | float, Field(ge=-sys.float_info.max, le=sys.float_info.max)]


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Feedback:
    """People's feedback on a session, or on one reply in it if `reply` is set."""

    at: FiniteFloat
    """Time of the feedback in seconds since the epoch."""
    session: _Text | None = None
    reply: _Text | None = None
    """The reply's id, as the endpoint gave it (chatcmpl-…, resp_…, msg_…)."""
    reward: _Reward | None = None
    liked: bool | None = None
    corrected: _Text | None = None
    """The text that the agent should have written."""
    comment: _Text | None = None
    end: bool = False
    """True if the feedback also ends the session."""

    @property
    def score(self) -> float | None:
        """The reward of the feedback: its number, else that of a like or dislike. None without either."""
        if self.reward is not None or self.liked is None:
            return self.reward
        return LIKED if self.liked else DISLIKED

    @property
    def is_rating(self) -> bool:
        """True if the feedback rates or corrects, and does not only end a session."""
        return any(value is not None for value in (self.reward, self.liked, self.corrected, self.comment))

    def build_row(self) -> dict[str, Any]:
        """Return the fields that are set as JSON values."""
        # `end` is a field only if it is true.
        return {name: value for name, value in asdict(self).items() if value is not None and (value or name != "end")}


_EXPECTED = {"reward": "a finite number", "liked": "true or false", "end": "true or false"}
_FIELDS = [name for name in Feedback.__dataclass_fields__ if name != "at"]


def parse_feedback(body: Any, at: float) -> Feedback:
    """Return the feedback in a request's body, given at the time `at`. Raises Refused if it names nothing or has a
    wrong field."""
    if not isinstance(body, Mapping):
        raise Refused("The body must be a JSON object.", code="invalid_json")
    for name in body:
        if name not in _FIELDS:
            raise Refused(f"Unknown field '{name}': expected some of {', '.join(_FIELDS)}.", param=str(name))
    try:
        feedback = Feedback(at, **{name: value for name, value in body.items() if value is not None})
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        expected = _EXPECTED.get(name, f"a string of 1 to {_MAX_CHARS} characters")
        raise Refused(f"Invalid value for '{name}': expected {expected}.", param=name, code="invalid_value") from None
    if feedback.session is None and feedback.reply is None:
        raise Refused("The feedback names no session and no reply: set 'session' or 'reply'.", param="session")
    if not feedback.is_rating and body.get("end") is None:
        raise Refused(
            "The feedback is empty: set at least one of reward, liked, corrected, comment and end.", param="reward"
        )
    return feedback


def build_verdict(feedback: Sequence[Feedback]) -> Verdict | None:
    """Return the verdict of a session's feedback, or `None` without feedback.

    The reward is the latest score of the session, else the mean score over its replies.
    """
    ratings = [entry for entry in feedback if entry.is_rating]
    if not ratings:
        return None
    scores = [rating.score for rating in ratings if rating.reply is None and rating.score is not None]
    score_by_reply = {
        rating.reply: rating.score for rating in ratings if rating.reply is not None and rating.score is not None
    }
    reward = scores[-1] if scores else sum(score_by_reply.values()) / len(score_by_reply) if score_by_reply else None
    likes = [rating.liked for rating in ratings if rating.liked is not None]
    details = {SCORER: [rating.build_row() for rating in ratings]}
    return Verdict(reward, likes[-1] if likes else None, "feedback of users", details=details, scorer=SCORER)
