"""Derives an episode's tokens again and reports differences.

A timeline is one token sequence of an episode, trained as one row. The mask is 1 at tokens to train.
Invariant: a token counts as checked only if a second source determined it: chat template and tokenizer for client
messages, the parsed reply for sampled tokens, calls for timelines, timelines for packed rows, the trainer's forward
pass for log-probabilities. Unchecked tokens are counted by reason; a wrong token is named by episode, call and
position.

`prove` checks ids, masks and positions of log-probabilities; `compare_logprobs` compares recorded with recomputed
log-probabilities. Pure functions: no I/O, no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ajet.context_tracker.packing import pack
from ajet.context_tracker.timeline_making import timelines
from ajet.record.tool_uses import chain_digest, encode_uses
from ajet.schema.batch import Sample
from ajet.schema.call import Call, Floats
from ajet.schema.episode import Timeline
from ajet.schema.task import extract_text
from ajet.schema.tool_use import ToolUse, compute_digest
from ajet_proof.tokens.proof_findings import CLASSES, REDACTED, Proof, WrongToken
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

__all__ = ["CLASSES", "Proof", "WrongToken", "compare_logprobs", "build_full_timelines", "prove", "build_samples"]


LEAST_SHARE = 0.05
"""Share of the tolerance that applies to a token of probability 1; less probable tokens get more."""


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
    """Derive the token ids, masks and timelines of an episode again, and compare them with the recorded ones.

    If a call is missing, the proof ends after the check of the structure.

    Args:
        calls: The episode's model calls, in order.
        messages, tools: The episode's messages and tool lists, to which calls refer by index.
        words: The run's renderer (`ajet.tokens.Renderer`, or an object with the same methods).
        lines: Recorded timelines, or None to build them from the calls.
        untrained: Recorded number of sampled tokens in no timeline, by reason, or None to skip their check.
        ignore_tools: True if calls with different tools may share a timeline, as in `timelines`.
        budget: Maximum number of tokens of a packed row.
        episode: Uuid of the episode, for messages.
        truncated: True if the run's settings truncate the distribution (top_p or top_k) for calls without their own
            settings, or None if unknown.
        newest: Highest policy version that can have sampled the episode, or None if unknown.
        temperature: Temperature of trained calls, or None if unknown.
        uses: The episode's tool calls with their results, as recorded by the environment.
    """
    proof = Proof(episodes=1, calls=len(calls))
    proof.wrong += prove_structure(calls, messages, tools, lines or (), episode)
    if proof.wrong:
        return proof
    proof.wrong += prove_versions(calls, newest, episode)
    proof.wrong += prove_endings(calls, messages, temperature, words.end_ids, episode)
    if truncated is False:
        proof.wrong += prove_untruncated(calls, episode)
    for _, wrong_token in (checked_uses := list(prove_uses(uses, calls, messages, episode))):
        proof.wrong += [wrong_token] if wrong_token is not None else []
    proof.tool_uses = len({id(use) for use, _ in checked_uses})
    prove_prompts(proof, calls, messages, tools, words, episode)
    derived, derived_untrained = timelines(calls, ignore_tools=ignore_tools)
    if lines is None:
        lines, untrained = derived, derived_untrained
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


def build_samples(timelines: Sequence[Timeline], episode: str, group: int = 0) -> list[Sample]:
    """Wrap timelines as samples with advantage 0, for packing into rows.

    A timeline with a sampled first token is left out, since no token predicts the first.

    Args:
        episode: Uuid of the episode.
        group: Number shared by the episodes of a group, whose common prefixes are packed once.
    """
    return [
        Sample(timeline, episode, group, np.zeros(timeline.ids.size, np.float32), 0.0)
        for timeline in timelines
        if not timeline.mask[:1].any()
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
    """Compare the recorded log-probabilities of a timeline with computed ones, and add the findings to `proof`.

    At most one wrong token per call is reported.

    Args:
        line: The timeline, with T tokens.
        computed: Computed log-probabilities, [T].
        at: Mask [T] of the tokens to compare.
        tolerance: Allowed difference of an improbable token, in nats. A token of probability p is allowed about the
            share 1 - p of it, because rounding moves logits, and a log-probability follows by this share.
        shaped: True to compare the log-probabilities of the sampling distribution, False for temperature 1.
        upper: If given, any value between `computed` and `upper` [T] is accepted, because rounding decides whether
            top_p keeps a token at its border.

    Returns:
        The differences (recorded - computed) of the compared tokens, in nats.
    """
    recorded = (line.logprobs if shaped else line.logprobs_unit).astype(np.float64)
    gap = recorded - (computed if upper is None else np.clip(recorded, computed, upper))
    tally = proof.counts["sampled"]
    if not shaped:
        tally.compared += int(at.sum())
        tally.gap_sum += float(gap[at].sum())
    if at.any():
        tally.gap_max = max(tally.gap_max, float(np.abs(gap[at]).max()))
    # 1 - p, plus LEAST_SHARE for tokens of probability near 1. `~(<=)` instead of `>` also finds NaN.
    allowed_share = LEAST_SHARE - np.expm1(np.minimum(recorded, computed))
    beyond_tolerance = at & ~(np.abs(gap) <= tolerance * allowed_share)
    for span in line.spans:
        wrong_offsets = np.flatnonzero(beyond_tolerance[span.start : span.stop])
        if wrong_offsets.size:
            position = span.start + int(wrong_offsets[0])
            distribution = f"at temperature {calls[span.call].temperature:g}" if shaped else "at temperature 1"
            problem = f"the log-probability {distribution} differs from the model's"
            if upper is not None:
                problem = (
                    "the log-probability of the sampling distribution differs from the one truncated by top_p and top_k"
                )
            proof.wrong.append(
                WrongToken(episode, span.call, position, problem, float(computed[position]), float(recorded[position]))
            )
    gaps: npt.NDArray[np.float64] = gap[at]
    return gaps


def build_full_timelines(calls: Sequence[Call]) -> list[Timeline]:
    """Build timelines that score each sampled token exactly once, those of untrained replies included.

    They are the input of a forward pass that recomputes all log-probabilities. Timelines with a sampled first token are
    left out.
    """
    lines, _ = timelines([replace(call, trained=True, finish="stop") for call in calls])
    return [line for line in lines if not line.mask[:1].any()]


# Check recorded tool uses against each other and against tool messages.
# Invariant: a use contradicts its hash chain (a changed field of the use or an earlier one), or the tool message of
# its call. Only the first message with an id is checked: a client may shorten its history later, as a fork.
# Redacted texts are not checked.
def prove_uses(
    uses: Sequence[ToolUse], calls: Sequence[Call], messages: Sequence[Mapping[str, Any]], episode: str
) -> Iterator[tuple[ToolUse, WrongToken | None]]:
    """Compare an episode's recorded tool calls ("tool uses") with their hash chain and with the tool messages.

    Yields:
        Each compared tool use, with its problem or None. A use may be yielded twice, once per comparison.
    """
    message_by_call_id = _find_tool_messages(messages)
    previous_digest = ""
    for number, use in enumerate(uses):
        wrong_token = None
        is_redacted = REDACTED in str(encode_uses([use]))  # the chain was computed before secrets were replaced
        if use.chain:
            if not is_redacted and chain_digest(previous_digest, use) != use.chain:
                wrong_token = WrongToken(episode, 0, 0, f"tool use {number} ({use.name}) was changed after recording")
            yield use, wrong_token
        previous_digest = use.chain
    for call_id, index in message_by_call_id.items():
        uses_of_call = [use for use in uses if use.call_id == call_id]
        text = extract_text(messages[index])
        is_redacted = REDACTED in text or any(REDACTED in use.result for use in uses_of_call)
        if uses_of_call and not is_redacted and not any(_is_result(text, use) for use in uses_of_call):
            call = next((call.index for call in calls if index in call.messages), 0)
            problem = f"the tool message {call_id} differs from the recorded result of {uses_of_call[0].name}"
            yield uses_of_call[0], WrongToken(episode, call, 0, problem)


def _find_tool_messages(messages: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the index of the first tool message for each tool call id."""
    index_by_call_id: dict[str, int] = {}
    for index, message in enumerate(messages):
        if message.get("role") == "tool" and isinstance(call_id := message.get("tool_call_id"), str):
            index_by_call_id.setdefault(call_id, index)
    return index_by_call_id


def _is_result(text: str, use: ToolUse) -> bool:
    """True if a tool message is the recorded result of a tool use.

    The record may hold only the beginning of a long result; then the digest and the length of the shown text decide.
    """
    if use.shown_whole and compute_digest(text) != use.digest:
        return False
    return text.startswith(use.result) and len(text) == use.shown
