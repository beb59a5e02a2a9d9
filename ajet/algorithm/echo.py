"""ECHO: GRPO on sampled tokens, plus cross-entropy on the tokens that the environment wrote.

ECHO, arXiv 2605.24517: L = L_GRPO - lambda * mean of log p over the tokens of observations (tool results, replies of a
user or game), lambda = `observation_weight`. The policy learns to predict what its actions cause, also from groups
whose rewards are equal. The mean is over all observed tokens of the batch, separate from the mean over sampled tokens.
An observation is the text between two replies of an agent, including the tokens of the chat template. The first prompt
is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ajet.algorithm.grpo import Grpo
from ajet.schema.batch import Sample
from ajet.schema.call import Call


class Echo(Grpo):
    """Train on the rewards as GRPO does, and on the text of the environment as supervised training does."""

    formula = (
        "that of `grpo`; tokens of the environment have the loss −`observation_weight` × log π, divided by their number"
    )
    paper = "ECHO, arXiv 2605.24517"
    needs = frozenset({"group", "observations"})


def find_observed_tokens(calls: Sequence[Call], samples: Sequence[Sample]) -> list[npt.NDArray[np.bool_]]:
    """Return [T] booleans per sample of an episode: True at tokens of observations. Each is True in one sample only.

    An observation of a call is the new text of its prompt, if the call extends an earlier one verbatim. A rewritten
    history is none: it repeats replies.
    """
    visited_calls: set[int] = set()
    masks = []
    for sample in samples:
        mask = np.zeros(sample.timeline.ids.size, np.bool_)
        index: int | None = sample.timeline.leaf
        stop = mask.size
        while index is not None:  # from the sample's last call back to its first
            call = calls[index]
            if index not in visited_calls and call.parent is not None and call.fork is None:
                mask[call.prefix : min(call.prefix + call.suffix_ids.size, stop)] = True
            visited_calls.add(index)
            stop, index = min(stop, call.prefix), call.parent
        masks.append(mask)
    return masks


def weigh_observations(calls_E: Sequence[Sequence[Call]], samples_E: Sequence[Sequence[Sample]], weight: float) -> int:
    """Write the weights of observed tokens into the samples of a batch's episodes. Return the number of such tokens.

    Args:
        weight: Sum of the weights over the batch.
    """
    masks_E = [find_observed_tokens(calls, samples) for calls, samples in zip(calls_E, samples_E, strict=True)]
    count = int(sum(mask.sum() for masks in masks_E for mask in masks))
    for samples, masks in zip(samples_E, masks_E, strict=True):
        for sample, mask in zip(samples, masks, strict=True):
            sample.observed = np.where(mask, weight / max(count, 1), 0).astype(np.float32)
    return count
