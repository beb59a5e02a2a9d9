"""Proof: what is found when an episode's tokens are derived a second time.

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
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ajet.context_tracker.packing import pack
from ajet.context_tracker.timeline_making import timelines
from ajet.schema.batch import Sample
from ajet.schema.call import Call, Floats
from ajet.schema.timeline import Timeline
from ajet.schema.tool_use import ToolUse
from ajet_proof.tokens.proof_findings import CLASSES, Proof, WrongToken
from ajet_proof.tokens.proof_lines import (
    prove_accounting,
    prove_endings,
    prove_rows,
    prove_same,
    prove_structure,
    prove_timelines,
    prove_untruncated,
    prove_versions,
)
from ajet_proof.tokens.proof_prompts import prove_prompts
from ajet_proof.tokens.proof_uses import prove_uses

__all__ = ["CLASSES", "Proof", "WrongToken", "compare_logprobs", "build_full_timelines", "prove", "build_samples"]

LEAST_SHARE = 0.05
"""Of the tolerance, which a token of probability 1 has too."""


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
    truncated: bool | None = None,
    newest: int | None = None,
    temperature: float | None = None,
    uses: Sequence[ToolUse] = (),
) -> Proof:
    """Everything that an episode's record alone can prove.

    `messages` and `tools` are the episode's tables, `words` its renderer (`ajet.tokens.Renderer`, or whatever has
    its methods). `lines` are the recorded timelines and `untrained` the recorded counts of what is in none; without
    them the timelines are made here, of all calls. `ignore_tools` as in `timelines`; `budget`: tokens of a packed
    row. `truncated`: whether trained calls that note nothing else were drawn with top_p or top_k; None: not known.
    `newest`: the latest policy version that can have sampled them, `temperature`: that of trained calls; None: not
    known. `uses`: of tools. A structure in which nothing can be looked up (a call is missing) ends the proof there.
    """
    proof = Proof(episodes=1, calls=len(calls))
    proof.wrong += prove_structure(calls, messages, tools, lines or (), episode)
    if proof.wrong:
        return proof
    proof.wrong += prove_versions(calls, newest, episode)
    proof.wrong += prove_endings(calls, messages, temperature, words.end_ids, episode)
    if truncated is False:
        proof.wrong += prove_untruncated(calls, episode)
    for _, wrong in (held := list(prove_uses(uses, calls, messages, episode))):
        proof.wrong += [wrong] if wrong is not None else []
    proof.tool_uses = len({id(use) for use, _ in held})
    prove_prompts(proof, calls, messages, tools, words, episode)
    derived, rest = timelines(calls, ignore_tools=ignore_tools)
    if lines is None:
        lines, untrained = derived, rest
    proof.timelines = len(lines)
    proof.wrong += prove_timelines(calls, lines, episode) or prove_same(lines, derived, episode)
    if untrained is not None:
        proof.wrong += prove_accounting(calls, lines, untrained, episode)
    if not proof.wrong:
        samples = build_samples(lines, episode)
        rows = pack(samples, budget)
        proof.rows = len(rows)
        proof.wrong += prove_rows(samples, rows)
    return proof


def build_samples(lines: Sequence[Timeline], episode: str, group: int = 0) -> list[Sample]:
    """Timelines as samples without credit, for packing."""
    return [
        Sample(line, episode, group, np.zeros(line.ids.size, np.float32), 0.0)
        for line in lines
        if not line.mask[:1].any()
    ]


def compare_logprobs(
    proof: Proof,
    calls: Sequence[Call],
    line: Timeline,
    computed: Floats,
    at: npt.NDArray[np.bool_],
    *,
    tolerance: float,
    episode: str,
    shaped: bool = False,
    upper: Floats | None = None,
) -> npt.NDArray[np.float64]:
    """Hold the recorded log-probabilities of `line` where `at` [T] is True to `computed` [T]; answers the gaps there
    (recorded - recomputed).

    Those at temperature 1 (`logprobs_unit`), or with `shaped` those of the distribution that was sampled from. With
    `upper` [T] any value from `computed` to it is right: rounding decides whether top_p keeps a token at its border.
    `tolerance` (nats) is for an improbable token: rounding moves logits, and a token's log-probability follows by the
    share that the other tokens have, 1 - p. A token further apart is wrong; one a call is reported.
    """
    recorded = (line.logprobs if shaped else line.logprobs_unit).astype(np.float64)
    gap = recorded - (computed if upper is None else np.clip(recorded, computed, upper))
    tally = proof.counts["sampled"]
    if not shaped:
        tally.compared += int(at.sum())
        tally.gap_sum += float(gap[at].sum())
    if at.any():
        tally.gap_max = max(tally.gap_max, float(np.abs(gap[at]).max()))
    others = LEAST_SHARE - np.expm1(np.minimum(recorded, computed))
    beyond = at & ~(np.abs(gap) <= tolerance * others)
    for span in line.spans:
        far = np.flatnonzero(beyond[span.start : span.stop])
        if far.size:
            position = span.start + int(far[0])
            which = f"at temperature {calls[span.call].temperature:g}" if shaped else "at temperature 1"
            what = f"the log-probability {which} is not what the model gives this token"
            if upper is not None:
                what = "the log-probability of the distribution sampled from is not what top_p and top_k leave of it"
            proof.wrong.append(
                WrongToken(episode, span.call, position, what, float(computed[position]), float(recorded[position]))
            )
    found: npt.NDArray[np.float64] = gap[at]
    return found


def build_full_timelines(calls: Sequence[Call]) -> list[Timeline]:
    """Timelines in which each sampled token has mask 1 once, also those that are never trained: what a forward pass
    must see to recompute all of an episode."""
    lines, _ = timelines([replace(call, trained=True, finish="stop") for call in calls])
    return [line for line in lines if not line.mask[:1].any()]
