"""Where timelines were cut: calls that could not extend the one before them, and why.

Invariant: one `Snap` for each call with a fork reason; a call that extends an earlier one verbatim or opens a
conversation is none. The gateway decides the reason when it renders the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ajet.schema.call import Call, ForkReason


@dataclass(frozen=True, slots=True)
class Snap:
    """A place where a call was rendered anew instead of continued."""

    call: int
    """The call that was rendered anew."""
    agent: str
    reason: ForkReason
    before: int | None
    """That agent's call before it; None when it has none."""
    shared: int
    """How many tokens its prompt still shares with the call that it forks from."""
    prompt: int
    """How many tokens its prompt has."""

    def __str__(self) -> str:
        cut = f"call {self.call} of {self.agent or 'the agent'} does not extend"
        return f"{cut} call {self.before}: {self.reason} (shares {self.shared} of its {self.prompt} prompt tokens)"


def snaps(calls: Sequence[Call]) -> list[Snap]:
    """The cuts of one episode, in order of its calls (`detect_timeline_snap` logs them)."""
    latest: dict[str, int] = {}
    found: list[Snap] = []
    for call in calls:
        if call.fork is not None:
            prompt = call.prefix + int(call.suffix_ids.size)
            found.append(Snap(call.index, call.agent, call.fork, latest.get(call.agent), call.prefix, prompt))
        latest[call.agent] = call.index
    return found


def forks(calls: Sequence[Call]) -> Counter[str]:
    """The number of calls that forked, by reason: a metric of every step."""
    return Counter(call.fork for call in calls if call.fork is not None)
