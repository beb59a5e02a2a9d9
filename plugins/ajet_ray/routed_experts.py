"""Routed experts: what a mixture of experts chose for each token of a timeline, for a trainer that replays it (R3).

Invariants: a row has the experts of all tokens but the last, in the order of its tokens. Experts live in the process
that played the episode: neither the mailbox nor the record has them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Call, RoutedExperts
from ajet.schema.episode import Episode, Group, Timeline


def drop_experts(group: Group) -> Group:
    """Return the group without routed experts: megabytes per episode that only the trainer's rows need."""
    if all(call.routed_experts is None for episode in group.episodes for call in episode.calls):
        return group
    episodes = [
        replace(episode, calls=[replace(call, routed_experts=None) for call in episode.calls])
        for episode in group.episodes
    ]
    return replace(group, episodes=episodes)


def read_experts(episode: Episode, timeline: Timeline) -> npt.NDArray[np.int16]:
    """Return [T - 1, layers, experts per token], the experts of all tokens of a timeline but the last.

    The row of a token before a sampled token is the sampling call's: a later call may have computed it anew, and other
    experts. Raises ValueError for a call without experts.
    """
    parts: list[npt.NDArray[np.integer[Any]]] = []
    call, stop = episode.calls[timeline.leaf], timeline.ids.size - 1
    while True:
        routed = _require_experts(episode, call)
        parts.append(routed.experts[: max(0, stop - routed.first)])
        stop = min(stop, routed.first)
        if not stop:
            break
        assert call.parent is not None, f"call {call.index} shares experts with no parent"
        call = episode.calls[call.parent]
    experts = np.concatenate(parts[::-1]).astype(np.int16)
    for span in timeline.spans:
        routed = _require_experts(episode, episode.calls[span.call])
        own = slice(span.start - 1, span.stop - 1)
        experts[own] = routed.experts[own.start - routed.first : own.stop - routed.first]
    return experts


def _require_experts(episode: Episode, call: Call) -> RoutedExperts:
    if call.routed_experts is None:
        raise ValueError(
            f"episode {episode.uuid}, call {call.index}: its experts are gone with the process that played it"
        )
    return call.routed_experts
