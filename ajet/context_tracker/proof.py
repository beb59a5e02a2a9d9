"""Proof: what was found when an episode's tokens were derived a second time.

Invariant: nothing is taken on trust. A token counts as checked only where something other than the record said what
it must be: the chat template and tokenizer for what a client sent, the parsed reply for what was sampled, the calls
for a timeline, the timelines for a packed row, the trainer's forward pass for a log-probability. What could not be
checked is counted by reason, and a wrong token is named by episode, call and position.

`prove` checks what the record alone can (ids, masks, where log-probabilities lie); `compare` holds recorded
log-probabilities to recomputed ones, which somebody with weights must bring. Pure: no I/O, no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ajet.context_tracker.packing import pack
from ajet.context_tracker.timelines import timelines
from ajet.schema.batch import Sample
from ajet.schema.call import Call, Floats
from ajet.schema.timeline import Timeline

TokenClass = Literal["sampled", "scaffold", "forked"]
"""sampled: by the model; scaffold: what client and template put around the replies; forked: prompts, or parts of
them, that a call without verbatim extension had to encode anew."""
LEAST_SHARE = 0.05
"""Of the tolerance, which a token of probability 1 has too."""
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
        told = "" if self.expected is None else f" (expected {self.expected:g}, found {self.found:g})"
        if self.expected is not None and self.found is None:
            told = f" (expected {self.expected:g}, found nothing)"
        episode = f"episode {self.episode}, " if self.episode else ""
        return f"{episode}call {self.call}, position {self.position}: {self.what}{told}"


@dataclass(slots=True)
class Tally:
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

    def add(self, other: Tally) -> None:
        """Take in another's counts."""
        for name in ("tokens", "checked", "equal", "compared", "gap_sum"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.gap_max = max(self.gap_max, other.gap_max)


@dataclass(slots=True)
class Proof:
    """What one or more episodes came to."""

    counts: dict[TokenClass, Tally] = field(default_factory=lambda: {name: Tally() for name in CLASSES})
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

    def __str__(self) -> str:
        if self.wrong:
            return "\n".join(str(token) for token in self.wrong)
        tallies = ", ".join(f"{tally.equal}/{tally.tokens} {name}" for name, tally in self.counts.items())
        return f"{self.calls} calls: ids equal {tallies}"


def prove(
    calls: Sequence[Call],
    messages: Sequence[dict[str, Any]],
    tools: Sequence[Sequence[dict[str, Any]]],
    words: Any,
    *,
    lines: Sequence[Timeline] | None = None,
    untrained: Counter[str] | None = None,
    ignore_tools: bool = True,
    budget: int = 1 << 20,
    episode: str = "",
) -> Proof:
    """Everything that an episode's record alone can prove.

    `messages` and `tools` are the episode's tables, `words` its renderer (`ajet.tokens.Renderer`, or whatever has
    its methods). `lines` are the recorded timelines and `untrained` the recorded counts of what is in none; without
    them the timelines are made here, of all calls. `ignore_tools` as in `timelines`; `budget`: tokens of a packed
    row. A structure in which nothing can be looked up (a call is missing) ends the proof there.
    """
    from ajet.context_tracker.proof_lines import (
        prove_accounting,
        prove_rows,
        prove_same,
        prove_structure,
        prove_timelines,
    )
    from ajet.context_tracker.proof_prompts import prove_prompts

    proof = Proof(episodes=1, calls=len(calls))
    proof.wrong += prove_structure(calls, messages, tools, lines or (), episode)
    if proof.wrong:
        return proof
    prove_prompts(proof, calls, messages, tools, words, episode)
    again, rest = timelines(calls, ignore_tools=ignore_tools)
    if lines is None:
        lines, untrained = again, rest
    proof.timelines = len(lines)
    proof.wrong += prove_timelines(calls, lines, episode) or prove_same(lines, again, episode)
    if untrained is not None:
        proof.wrong += prove_accounting(calls, lines, untrained, episode)
    if not proof.wrong:
        samples = samples_of(lines, episode)
        rows = pack(samples, budget)
        proof.rows = len(rows)
        proof.wrong += prove_rows(samples, rows)
    return proof


def samples_of(lines: Sequence[Timeline], episode: str, group: int = 0) -> list[Sample]:
    """Timelines as samples without credit, for packing."""
    return [
        Sample(line, episode, group, np.zeros(line.ids.size, np.float32), 0.0)
        for line in lines
        if not line.mask[:1].any()
    ]


def compare(
    proof: Proof,
    calls: Sequence[Call],
    line: Timeline,
    computed: Floats,
    at: npt.NDArray[np.bool_],
    *,
    tolerance: float,
    episode: str,
    shaped: bool = False,
) -> None:
    """Hold the recorded log-probabilities of `line` where `at` [T] is True to `computed` [T].

    Those at temperature 1 (`logprobs_unit`), or with `shaped` those of the distribution that was sampled from.
    `tolerance` (nats) is for an improbable token: rounding moves logits, and a token's log-probability follows by the
    share that the other tokens have, 1 - p. A token further apart is wrong; one a call is reported.
    """
    recorded = line.logprobs if shaped else line.logprobs_unit
    gap = recorded.astype(np.float64) - computed
    tally = proof.counts["sampled"]
    if not shaped:
        tally.compared += int(at.sum())
        tally.gap_sum += float(gap[at].sum())
    if at.any():
        tally.gap_max = max(tally.gap_max, float(np.abs(gap[at]).max()))
    others = LEAST_SHARE - np.expm1(np.minimum(recorded.astype(np.float64), computed))
    beyond = at & ~(np.abs(gap) <= tolerance * others)
    for span in line.spans:
        far = np.flatnonzero(beyond[span.start : span.stop])
        if far.size:
            position = span.start + int(far[0])
            which = f"at temperature {calls[span.call].temperature:g}" if shaped else "at temperature 1"
            what = f"the log-probability {which} is not what the model gives this token"
            proof.wrong.append(
                WrongToken(episode, span.call, position, what, float(computed[position]), float(recorded[position]))
            )


def first_difference(found: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> int | None:
    """The first index at which two arrays differ, one's end included; None where they are equal."""
    size = min(found.size, wanted.size)
    apart = np.flatnonzero(found[:size] != wanted[:size])
    if apart.size:
        return int(apart[0])
    return None if found.size == wanted.size else size


def prompt_size(call: Call) -> int:
    """P: how many tokens a call's prompt has."""
    return call.prefix + int(call.suffix_ids.size)


def at_position(array: npt.NDArray[Any], position: int) -> int | None:
    """The id there; None past the end."""
    return int(array[position]) if position < array.size else None


def everything(calls: Sequence[Call]) -> list[Timeline]:
    """Timelines in which each sampled token has mask 1 once, also those that are never trained: what a forward pass
    must see to recompute all of an episode."""
    lines, _ = timelines([replace(call, trained=True, finish="stop") for call in calls])
    return [line for line in lines if not line.mask[:1].any()]
