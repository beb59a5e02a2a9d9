"""Routed experts of a mixture-of-experts model for each token, for a trainer that replays the routing (R3).

A timeline is one token sequence of an episode, trained as one row. Invariants: a row has the experts of all tokens but
the last, in the order of its tokens. Experts stay in the memory of the process that ran the episode: they are neither
sent through the mailbox nor written to the run's folder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Call, RoutedExperts
from ajet.schema.episode import Episode, Group, Timeline


def drop_experts(group: Group) -> Group:
    """Return the group without routed experts, which take megabytes per episode and only the trainer's rows need."""
    if all(call.routed_experts is None for episode in group.episodes for call in episode.calls):
        return group
    episodes = [
        replace(episode, calls=[replace(call, routed_experts=None) for call in episode.calls])
        for episode in group.episodes
    ]
    return replace(group, episodes=episodes)


def read_experts(episode: Episode, timeline: Timeline) -> npt.NDArray[np.int16]:
    """Return the experts of all tokens of a timeline (one token sequence of the episode) but the last.

    Later calls recompute tokens of earlier calls and may choose other experts. A sampled token is drawn from the
    logits at the token before it. There the result has the experts of the call that sampled the token.

    Returns:
        int16 array [T - 1, layers, experts per token], where T is the number of tokens.

    Raises:
        ValueError: a call has no experts.
    """
    segments: list[npt.NDArray[np.integer[Any]]] = []
    # The experts of tokens [stop, T - 1) are in `segments`. The last token has none, since nothing is sampled after it.
    call, stop = episode.calls[timeline.leaf], timeline.ids.size - 1
    # A call recorded only the experts after the prefix that it shares with its parent, so walk from the last call up.
    while True:
        routed = _require_experts(episode, call)
        segments.append(routed.experts[: max(0, stop - routed.first)])
        stop = min(stop, routed.first)
        if not stop:
            break
        assert call.parent is not None, f"call {call.index} shares experts with no parent"
        call = episode.calls[call.parent]
    experts = np.concatenate(segments[::-1]).astype(np.int16)
    # Where a later call recomputed sampled tokens, put back the experts of the call that sampled them.
    for span in timeline.spans:
        routed = _require_experts(episode, episode.calls[span.call])
        positions = slice(span.start - 1, span.stop - 1)
        experts[positions] = routed.experts[positions.start - routed.first : positions.stop - routed.first]
    return experts


def _require_experts(episode: Episode, call: Call) -> RoutedExperts:
    """Return a call's experts. Raises ValueError if they were not recorded, or were lost with their process."""
    if call.routed_experts is None:
        raise ValueError(
            f"episode {episode.uuid}, call {call.index}: its routed experts were lost with the process that ran it"
        )
    return call.routed_experts
