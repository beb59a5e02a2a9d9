"""Texts: which earlier call of the session does a raw prompt go on from, or at least begin like.

Invariant: a raw prompt goes on from call k exactly when it begins with k's prompt and the text of k's reply. Cost:
linear in the prompt's length, whatever the number of calls; what is kept are two digests a call, not its text.
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
    _prompts: dict[tuple[int, bytes], int] = field(default_factory=dict)
    """(length, digest) of a prompt -> the first call that had it."""
    _lengths: list[int] = field(default_factory=list)
    """The lengths there are, each once, ascending."""

    def match(self, agent: str, prompt: str) -> tuple[int | None, int | None]:
        """The call whose prompt and reply are the longest beginning of `prompt` (ties go to `agent`'s latest), and the
        call whose prompt alone is."""
        found: dict[str, int] | None = None
        begun: int | None = None
        running, at = _digest(), 0
        for length in self._lengths[: bisect_right(self._lengths, len(prompt))]:
            running.update(prompt[at:length].encode("utf-8", "surrogatepass"))
            at = length
            found = self._ends.get((length, running.digest()), found)
            begun = self._prompts.get((length, running.digest()), begun)
        return None if found is None else found.get(agent, max(found.values())), begun

    def asked(self, index: int, prompt: str) -> None:
        """Call `index` was made with this prompt."""
        self._prompts.setdefault(self._key(prompt), index)

    def told(self, index: int, agent: str, text: str) -> None:
        """Call `index` was answered; `text` is its prompt and reply."""
        by_agent = self._ends.setdefault(self._key(text), {})
        by_agent[agent] = index

    def _key(self, text: str) -> tuple[int, bytes]:
        """A text's length and digest; from now on prompts are looked at up to that length, too."""
        running = _digest()
        running.update(text.encode("utf-8", "surrogatepass"))
        at = bisect_right(self._lengths, len(text))
        if not at or self._lengths[at - 1] != len(text):
            insort(self._lengths, len(text))
        return len(text), running.digest()


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)
