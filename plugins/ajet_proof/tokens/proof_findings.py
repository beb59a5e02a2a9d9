"""Classes for the results of a proof, and helpers shared by its checks.

Invariant: each token is counted once, in one class; a wrong token is named by episode, call and position.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Call

REDACTED = "[redacted "
"""Marker of a redacted secret in a record."""
TokenClass = Literal["sampled", "scaffold", "forked"]
"""The classes by which tokens are counted.

sampled: sampled by the model. scaffold: tokens of client messages and chat template around replies. forked: prompt
tokens that were encoded again, because the call could not extend the exact tokens of an earlier call.
"""
CLASSES: tuple[TokenClass, ...] = ("sampled", "scaffold", "forked")


@dataclass(frozen=True, slots=True)
class WrongToken:
    """The first token of a call that a check found wrong."""

    episode: str
    call: int
    position: int
    """Index into the call's prompt + reply, or into a timeline."""
    what: str
    expected: float | int | None = None
    found: float | int | None = None

    def __str__(self) -> str:
        detail = "" if self.expected is None else f" (expected {self.expected:g}, found {self.found:g})"
        if self.expected is not None and self.found is None:
            detail = f" (expected {self.expected:g}, found nothing)"
        episode = f"episode {self.episode}, " if self.episode else ""
        return f"{episode}call {self.call}, position {self.position}: {self.what}{detail}"


@dataclass(slots=True)
class TokenTally:
    """Counts of one token class. A token replayed by several calls counts once."""

    tokens: int = 0
    checked: int = 0
    """Number of tokens whose id was determined by a second source."""
    equal: int = 0
    """Number of checked tokens for which the second source gave the recorded id."""
    compared: int = 0
    """Number of tokens with a recomputed log-probability."""
    gap_sum: float = 0.0
    """Sum of (recorded - recomputed) log-probabilities, nats."""
    gap_max: float = 0.0  # largest absolute difference, nats

    def add(self, other: TokenTally) -> None:
        """Add the counts of another tally."""
        for name in ("tokens", "checked", "equal", "compared", "gap_sum"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.gap_max = max(self.gap_max, other.gap_max)


@dataclass(slots=True)
class Proof:
    """Result of checking the tokens of episodes: counts by class, and wrong tokens."""

    counts: dict[TokenClass, TokenTally] = field(default_factory=lambda: {name: TokenTally() for name in CLASSES})
    wrong: list[WrongToken] = field(default_factory=list)
    """At most one entry for each call and check: later tokens usually follow from the first."""
    unchecked: Counter[str] = field(default_factory=Counter)
    """Number of tokens with unchecked ids, by reason."""
    forks: Counter[str] = field(default_factory=Counter)  # forked calls, by reason
    episodes: int = 0
    calls: int = 0
    timelines: int = 0
    rows: int = 0
    tool_uses: int = 0  # checked tool uses

    @property
    def ok(self) -> bool:
        """True if no token is wrong."""
        return not self.wrong

    @property
    def mismatch_kl(self) -> float:
        """Mean of (recorded - recomputed) log-probability over compared tokens, nats. 0 without compared tokens."""
        tally = self.counts["sampled"]
        return tally.gap_sum / tally.compared if tally.compared else 0.0

    def add(self, other: Proof) -> None:
        """Add the counts and findings of another proof."""
        for name in CLASSES:
            self.counts[name].add(other.counts[name])
        self.wrong += other.wrong
        self.unchecked += other.unchecked
        self.forks += other.forks
        self.episodes += other.episodes
        self.calls += other.calls
        self.timelines += other.timelines
        self.rows += other.rows
        self.tool_uses += other.tool_uses

    def __str__(self) -> str:
        if self.wrong:
            return "\n".join(str(token) for token in self.wrong)
        tallies = ", ".join(f"{tally.equal}/{tally.tokens} {name}" for name, tally in self.counts.items())
        return f"{self.calls} calls: ids equal {tallies}"


def find_first_difference(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> int | None:
    """Return the first index where two arrays differ (a missing end included), or None if equal."""
    size = min(found.size, wanted.size)
    differing = np.flatnonzero(found[:size] != wanted[:size])
    if differing.size:
        return int(differing[0])
    return None if found.size == wanted.size else size


def count_prompt_tokens(call: Call) -> int:
    """Return the number of prompt tokens of a call: those shared with an earlier call, and its own."""
    return call.prefix + int(call.suffix_ids.size)


def get_token(array: npt.NDArray[Any], position: int) -> int | None:
    """Return the token id at an index, or None past the end of the array."""
    return int(array[position]) if position < array.size else None
