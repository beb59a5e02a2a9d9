"""Findings: what a proof comes to, and the small questions that its checks share.

Invariant: a token is counted in one class, once; a wrong token is named by episode, call and position.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Call

TokenClass = Literal["sampled", "scaffold", "forked"]
"""sampled: by the model; scaffold: what client and template put around the replies; forked: prompts, or parts of
them, that a call without verbatim extension had to encode anew."""
CLASSES: tuple[TokenClass, ...] = ("sampled", "scaffold", "forked")


@dataclass(frozen=True, slots=True)
class WrongToken:
    """The first token of a call that is not what it must be."""

    episode: str
    call: int
    position: int
    """Index into the call's prompt + reply; for a timeline that is its own index."""
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
    """Counts of one class of tokens. Each token of an episode counts once, however many calls replay it."""

    tokens: int = 0
    checked: int = 0
    """Tokens whose id something other than the record could say."""
    equal: int = 0
    """Checked tokens whose id was the recorded one."""
    compared: int = 0
    """Tokens whose log-probability was recomputed."""
    gap_sum: float = 0.0
    """Sum of (recorded - recomputed) log-probability, nats."""
    gap_max: float = 0.0
    """The largest difference of the two, nats."""

    def add(self, other: TokenTally) -> None:
        """Take in another's counts."""
        for name in ("tokens", "checked", "equal", "compared", "gap_sum"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.gap_max = max(self.gap_max, other.gap_max)


@dataclass(slots=True)
class Proof:
    """The findings of proving one or more episodes: counts by class, and each wrong token."""

    counts: dict[TokenClass, TokenTally] = field(default_factory=lambda: {name: TokenTally() for name in CLASSES})
    wrong: list[WrongToken] = field(default_factory=list)
    """At most one a call and kind of check: what follows a wrong token is seldom news."""
    unchecked: Counter[str] = field(default_factory=Counter)
    """Tokens whose ids nothing could say, by reason."""
    forks: Counter[str] = field(default_factory=Counter)
    """Calls that forked, by reason."""
    episodes: int = 0
    calls: int = 0
    timelines: int = 0
    rows: int = 0
    tool_uses: int = 0
    """Uses of tools that something could contradict."""

    @property
    def ok(self) -> bool:
        """True when no token is wrong."""
        return not self.wrong

    @property
    def mismatch_kl(self) -> float:
        """Mean of (recorded - recomputed) log-probability over compared tokens, nats; 0 when none was."""
        tally = self.counts["sampled"]
        return tally.gap_sum / tally.compared if tally.compared else 0.0

    def add(self, other: Proof) -> None:
        """Take in another proof."""
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
    """The first index at which two arrays differ, one's end included; None where they are equal."""
    size = min(found.size, wanted.size)
    differing = np.flatnonzero(found[:size] != wanted[:size])
    if differing.size:
        return int(differing[0])
    return None if found.size == wanted.size else size


def count_prompt_tokens(call: Call) -> int:
    """P: how many tokens a call's prompt has."""
    return call.prefix + int(call.suffix_ids.size)


def get_token(array: npt.NDArray[Any], position: int) -> int | None:
    """The id there; None past the end."""
    return int(array[position]) if position < array.size else None
