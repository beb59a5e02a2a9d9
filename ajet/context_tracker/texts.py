"""Texts: which earlier call of the session does a raw prompt go on from.

Invariant: a raw prompt goes on from call k exactly when it begins with k's prompt and the text of k's reply. Cost:
linear in the prompt's length, whatever the number of calls; what is kept is a digest a call, not its text.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right, insort
from dataclasses import dataclass, field


@dataclass(slots=True)
class Texts:
    """The calls of one session that had raw prompts, by what was said. One thread at a time."""

    _ends: dict[tuple[int, bytes], dict[str, int]] = field(default_factory=dict)
    """(length, digest) of a call's prompt and reply -> its agent -> the agent's latest such call."""
    _lengths: list[int] = field(default_factory=list)
    """The lengths there are, each once, ascending."""

    def match(self, agent: str, prompt: str) -> int | None:
        """The call whose prompt and reply are the longest beginning of `prompt`; ties go to `agent`'s latest."""
        found: dict[str, int] | None = None
        running, at = _digest(), 0
        for length in self._lengths[: bisect_right(self._lengths, len(prompt))]:
            running.update(prompt[at:length].encode("utf-8", "surrogatepass"))
            at = length
            found = self._ends.get((length, running.digest()), found)
        return None if found is None else found.get(agent, max(found.values()))

    def told(self, index: int, agent: str, text: str) -> None:
        """Call `index` was answered; `text` is its prompt and reply."""
        running = _digest()
        running.update(text.encode("utf-8", "surrogatepass"))
        by_agent = self._ends.setdefault((len(text), running.digest()), {})
        by_agent[agent] = index
        at = bisect_right(self._lengths, len(text))
        if not at or self._lengths[at - 1] != len(text):
            insort(self._lengths, len(text))


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)
