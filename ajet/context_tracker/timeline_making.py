"""Timelines of an episode's calls: each sampled token is trained once, in the context of its sampling.

Invariants (property tests: tests/context_tracker/test_timeline_making.py):

- each token of a trained, delivered call is in exactly one timeline with mask 1, with the engine's ids, logprobs and
  versions; in other timelines the token is context with mask 0;
- a timeline's ids are the prompt and response of one call, the leaf: no token gets a context unknown to the model;
- sampled tokens = tokens with mask 1 + tokens counted by reason;
- the sampled tokens of a timeline are of one adapter; tokens of others are context;
- the timelines do not depend on the order of the calls;
- a timeline is cut at its end only, and tokens left out are counted by reason; the choice among too many timelines
  depends on seed and episode only;
- each call with a fork reason (found by the gateway) is one `Snap`.

A call is part of another call's timeline if the other's prompt begins with its prompt and response. If several calls
continue a call, the call is part of the longest timeline; among equally long timelines a digest of the content decides.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ajet.context_tracker.merge import PrefixTree, Spot, allocate_bytes, find_continued, insert_calls
from ajet.schema.call import Call, Floats, ForkReason, Ids
from ajet.schema.episode import SampledSpan, Timeline

_EACH = 13
"""Bytes of a token: two logprobs and a version of four bytes each, and a mask of one."""


def timelines(
    calls: Sequence[Call],
    *,
    ignore_tools: bool = True,
) -> tuple[list[Timeline], Counter[str]]:
    """Return the timelines of one episode by leaf, and counts of sampled tokens in no timeline.

    The leaf is the call whose prompt and response are the timeline's tokens. The counts are by `UntrainedReason`. Calls
    are joined by their tokens, whether or not they have a parent. Equal text in other tokens is another context, in
    which the reply was not sampled: calls with such prompts are not joined.

    Args:
        calls: All calls of the episode. `calls[i].parent` is an index into this list.
        ignore_tools: False: calls with different lists of tools are never joined.
    """
    untrained: Counter[str] = Counter()
    groups: dict[tuple[int | None, str | None], list[int]] = {}
    for index, call in enumerate(calls):
        if not call.response_ids.size:
            continue
        if reason := _find_untrained_reason(call):
            untrained[reason] += int(call.response_ids.size)
        else:
            groups.setdefault((None if ignore_tools else call.tools, call.terms.adapter), []).append(index)
    tree, spots = insert_calls(calls)
    chains = [chain for members in groups.values() for chain in _cut_chains(calls, tree, spots, members)]
    # One piece of memory for all arrays. np.zeros would also write the rest of the huge pages.
    total = sum(spots[chain[-1]].stop for chain in chains)
    memory = allocate_bytes(total, _EACH)
    four_byte_values, masks = memory[: 12 * total].view(np.float32), memory[12 * total :].view(np.bool_)
    logprobs, unit_logprobs, versions = (
        four_byte_values[:total],
        four_byte_values[total : 2 * total],
        four_byte_values[2 * total :].view(np.int32),
    )
    four_byte_values[: 2 * total].fill(0)
    versions.fill(-1)
    masks.fill(False)
    made_timelines: list[Timeline] = []
    offset = 0
    for chain in chains:
        end = offset + spots[chain[-1]].stop
        arrays = masks[offset:end], logprobs[offset:end], unit_logprobs[offset:end], versions[offset:end]
        made_timelines.append(_build_timeline(calls, tree, spots, chain, *arrays))
        offset = end
    return sorted(made_timelines, key=lambda timeline: timeline.leaf), untrained


def _find_untrained_reason(call: Call) -> str | None:
    """Return why a call's tokens are not trained, or `None` for trained calls."""
    if not call.trained:
        return "not_trainable"
    return None if call.is_delivered else "aborted_call"


def _cut_chains(
    calls: Sequence[Call], tree: PrefixTree, spots: Sequence[Spot], members: Sequence[int]
) -> list[list[int]]:
    """Cut the tree of continuations into chains, each of which becomes a timeline.

    Each member is in exactly one chain, and the last member of a chain is the leaf.

    Args:
        spots: For each call, the place in `tree` where the call's tokens end.
        members: Indexes of the calls that may be joined.
    """
    continued_spots = find_continued(calls, tree, spots, members)
    if not any(continued_spots.values()):
        return [[index] for index in members]
    ending: dict[Spot, list[int]] = {}
    following: dict[Spot, list[int]] = {}
    for index in members:
        ending.setdefault(spots[index], []).append(index)
        continued_spot = continued_spots[index]
        if continued_spot is not None:
            following.setdefault(continued_spot, []).append(index)

    next_call_of: dict[int, int] = {}  # a call -> the call that continues it in its chain
    timeline_length: dict[int, int] = {}  # a call -> the tokens of the longest timeline that it can be part of
    digests = _Digests(calls, tree, spots, continued_spots, next_call_of)
    for spot in sorted(ending, key=lambda spot: spot.stop, reverse=True):
        owners, candidates = ending[spot], following.get(spot, [])
        if len(owners) > 1:
            owners.sort(key=digests.digest_call)
        if len(candidates) > 1:
            lengths = sorted((timeline_length[candidate] for candidate in candidates), reverse=True)
            if len(set(lengths)) == len(lengths):
                candidates.sort(key=timeline_length.__getitem__, reverse=True)
            else:
                candidates.sort(key=lambda candidate: (-timeline_length[candidate], digests.digest_chain(candidate)))
        for owner, candidate in zip(owners, candidates, strict=False):
            next_call_of[owner] = candidate
        for owner in owners:
            timeline_length[owner] = timeline_length[next_call_of[owner]] if owner in next_call_of else spot.stop

    # A chain begins with a call that continues no other call in its chain.
    continuing_calls = set(next_call_of.values())
    chains = []
    for index in members:
        if index in continuing_calls:
            continue
        chain = [index]
        while chain[-1] in next_call_of:
            chain.append(next_call_of[chain[-1]])
        chains.append(chain)
    return chains


class _Digests:
    """Digests of calls and their continuations, to choose between equally long continuations.

    The choice must depend on the content only, not on the order of the calls.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        tree: PrefixTree,
        spots: Sequence[Spot],
        before: dict[int, Spot | None],
        heir: dict[int, int],
    ) -> None:
        self._calls = calls
        self._tree = tree
        self._spots = spots
        self._parent_of = before
        self._heir_of = heir
        self._digest_of_call: dict[int, bytes] = {}

    def digest_call(self, index: int) -> bytes:
        """Return a digest of a call's agent, target, tools, versions, reply tokens and log-probabilities.

        The digest orders calls that end with the same tokens. Their prompts are equal, so prompt tokens are left out.
        """
        call = self._calls[index]
        hashed = hashlib.blake2b(repr((call.agent, call.target, call.tools, call.versions)).encode(), digest_size=16)
        for array in (call.response_ids, call.logprobs, call.logprobs_unit):
            hashed.update(np.ascontiguousarray(array).data)
        return hashed.digest()

    def digest_chain(self, index: int) -> bytes:
        """Return a digest of a call, its tokens behind the continued call, and all calls that continue it."""
        chain = [index]
        while chain[-1] not in self._digest_of_call and chain[-1] in self._heir_of:
            chain.append(self._heir_of[chain[-1]])
        continuation_digest = b""
        for member in reversed(chain):
            if member not in self._digest_of_call:
                continued_spot = self._parent_of[member]
                ids = self._tree.ids(self._spots[member], 0 if continued_spot is None else continued_spot.stop)
                hashed = hashlib.blake2b(self.digest_call(member), digest_size=16)
                hashed.update(ids.data)
                hashed.update(continuation_digest)
                self._digest_of_call[member] = hashed.digest()
            continuation_digest = self._digest_of_call[member]
        return continuation_digest


def _build_timeline(
    calls: Sequence[Call],
    tree: PrefixTree,
    spots: Sequence[Spot],
    chain: Sequence[int],
    mask: npt.NDArray[np.bool_],
    logprobs: Floats,
    logprobs_unit: Floats,
    versions: Ids,
) -> Timeline:
    """Build the timeline of one chain of calls, in which each call continues the tokens of the call before.

    The four arrays have the timeline's length T, are written in place and become the timeline's arrays.

    Args:
        spots: For each call, the place in `tree` where the call's tokens end.
        chain: Indexes of the calls. The last call has all tokens of the timeline.
        mask: [T], all False; set to True at sampled tokens.
        logprobs: [T], all 0; set at sampled tokens, like `logprobs_unit`.
        versions: [T], all -1; set to the policy versions of sampled tokens.
    """
    leaf = calls[chain[-1]]
    ids = tree.ids(spots[chain[-1]])
    spans = []
    for index in chain:
        call, (_, stop) = calls[index], spots[index]
        start = stop - call.response_ids.size
        mask[start:stop].fill(True)
        logprobs[start:stop] = call.logprobs
        logprobs_unit[start:stop] = call.logprobs_unit
        for run in call.versions:
            versions[start + run.first : stop].fill(run.low)
        spans.append(SampledSpan(call.index, start, stop))
    arrays = ids, mask, logprobs, logprobs_unit, versions
    return Timeline(leaf.index, leaf.agent, leaf.target, *arrays, tuple(spans), leaf.terms.adapter)


def cut_over_length(timelines: Sequence[Timeline], max_tokens: int) -> tuple[list[Timeline], Counter[str]]:
    """Cut timelines to at most `max_tokens` tokens. Return the timelines and the cut sampled tokens as `over_length`.

    A timeline without a sampled token before the cut is dropped.
    """
    remaining: list[Timeline] = []
    untrained: Counter[str] = Counter()
    for timeline in timelines:
        if timeline.ids.size <= max_tokens:
            remaining.append(timeline)
            continue
        cut_timeline = replace(
            timeline,
            ids=timeline.ids[:max_tokens],
            mask=timeline.mask[:max_tokens],
            logprobs=timeline.logprobs[:max_tokens],
            logprobs_unit=timeline.logprobs_unit[:max_tokens],
            versions=timeline.versions[:max_tokens],
            spans=tuple(
                SampledSpan(span.call, span.start, min(span.stop, max_tokens))
                for span in timeline.spans
                if span.start < max_tokens
            ),
        )
        untrained["over_length"] += timeline.sampled - cut_timeline.sampled
        if cut_timeline.spans:
            remaining.append(cut_timeline)
    return remaining, untrained


def choose(
    timelines: Sequence[Timeline], max_samples: int, *, seed: int, episode: str
) -> tuple[list[Timeline], Counter[str]]:
    """Choose at most `max_samples` of an episode's timelines at random, each with the same probability.

    Return the chosen timelines in their order, and the sampled tokens of the others as `max_sample_per_task`.
    """
    if len(timelines) <= max_samples:
        return list(timelines), Counter()
    chosen_indices = set(random.Random(f"{seed}/{episode}").sample(range(len(timelines)), max_samples))
    dropped = sum(timeline.sampled for index, timeline in enumerate(timelines) if index not in chosen_indices)
    remaining = [timeline for index, timeline in enumerate(timelines) if index in chosen_indices]
    return remaining, Counter({"max_sample_per_task": dropped})


@dataclass(frozen=True, slots=True)
class Snap:
    """A call that forked: its prompt was rendered anew instead of extending an earlier call."""

    call: int
    agent: str
    reason: ForkReason
    before: int | None
    """The agent's previous call; `None` for the first call."""
    shared: int
    """Tokens that the prompt shares with the call from which it forks."""
    prompt: int
    """Number of tokens of the prompt."""

    def __str__(self) -> str:
        beginning = f"the prompt of model call {self.call} of {self.agent or 'the agent'} does not continue"
        return (
            f"{beginning} call {self.before}: {self.reason} (the prompts share {self.shared} of {self.prompt} tokens)"
        )


def snaps(calls: Sequence[Call]) -> list[Snap]:
    """Return the forked calls of one episode, in the order of its calls (`detect_timeline_snap` logs them)."""
    latest: dict[str, int] = {}
    fork_list: list[Snap] = []
    for call in calls:
        if call.fork is not None:
            prompt = call.prefix + int(call.suffix_ids.size)
            fork_list.append(Snap(call.index, call.agent, call.fork, latest.get(call.agent), call.prefix, prompt))
        latest[call.agent] = call.index
    return fork_list
