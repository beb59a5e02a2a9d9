"""RawPrompts: finds the earlier call of a session that a raw prompt extends, or whose prompt it begins with.

Invariant: a raw prompt extends call k exactly if it begins with k's prompt and the text of k's reply. The cost is
linear in the prompt's length, whatever the number of calls. For each call two digests are stored instead of the text.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right, insort
from dataclasses import dataclass, field


@dataclass(slots=True)
class RawPrompts:
    """The raw prompts of one session's calls. One thread at a time uses it."""

    _latest_call_of_text: dict[tuple[int, bytes], dict[str, int]] = field(default_factory=dict)
    """(length, digest) of a call's prompt and reply -> agent -> the agent's latest call with this text."""
    _first_call_of_prompt: dict[tuple[int, bytes], int] = field(default_factory=dict)
    """(length, digest) of a prompt -> the first call with this prompt."""
    _text_lengths: list[int] = field(default_factory=list)
    """The lengths of all stored texts, ascending, without duplicates."""

    def match(self, agent: str, prompt: str) -> tuple[int | None, int | None]:
        """Return two calls: the one whose prompt and reply begin `prompt`, and the one whose prompt alone begins it.

        The longest beginning wins. Of several calls the agent's latest is returned, and None if no call fits.
        """
        calls_by_agent: dict[str, int] | None = None
        prompt_call: int | None = None
        running_digest, hashed_chars = hashlib.blake2b(digest_size=16), 0
        for length in self._text_lengths[: bisect_right(self._text_lengths, len(prompt))]:
            running_digest.update(prompt[hashed_chars:length].encode("utf-8", "surrogatepass"))
            hashed_chars = length
            calls_by_agent = self._latest_call_of_text.get((length, running_digest.digest()), calls_by_agent)
            prompt_call = self._first_call_of_prompt.get((length, running_digest.digest()), prompt_call)
        return None if calls_by_agent is None else calls_by_agent.get(agent, max(calls_by_agent.values())), prompt_call

    def add_request(self, index: int, prompt: str) -> None:
        """Add the prompt of call `index`."""
        self._first_call_of_prompt.setdefault(self._add_length(prompt), index)

    def add_reply(self, index: int, agent: str, text: str) -> None:
        """Add the reply of call `index`.

        Args:
            text: The prompt followed by the reply.
        """
        by_agent = self._latest_call_of_text.setdefault(self._add_length(text), {})
        by_agent[agent] = index

    def _add_length(self, text: str) -> tuple[int, bytes]:
        """Return the length and digest of a text, and note the length: later prompts are compared at it."""
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
        index = bisect_right(self._text_lengths, len(text))
        if not index or self._text_lengths[index - 1] != len(text):
            insort(self._text_lengths, len(text))
        return len(text), digest.digest()
