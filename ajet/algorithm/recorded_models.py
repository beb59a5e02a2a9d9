"""Replays recorded critic values and reference logprobs of a finished step, to compute advantages again.

Invariant: no number is invented. Missing or non-finite numbers, or a count different from the episode's trained tokens,
raise an error with the episode's id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ajet.algorithm.token_credit import list_sampled_runs, scatter_tokens
from ajet.schema.batch import Sample
from ajet.schema.call import Floats
from ajet.schema.episode import NO_OUTCOME, Outcome
from ajet.schema.errors import AjetError

if TYPE_CHECKING:
    from ajet.algorithm.credit_assignment import LogprobPairs
    from ajet.algorithm.token_credit import CriticFunction


class NotRecordedError(AjetError, ValueError):
    """Raised if a record lacks model outputs of an episode. `what` names the missing numbers."""

    def __init__(self, uuid: str, what: str) -> None:
        super().__init__(uuid)
        self.what = what


def make_recorded_critic(outcomes: Mapping[str, Outcome]) -> CriticFunction:
    """Return a critic that reads recorded values. The critic raises NotRecordedError."""
    return lambda samples: _scatter_recorded(
        samples, lambda uuid: outcomes.get(uuid, NO_OUTCOME).values, "the critic's values"
    )


def make_recorded_reference(outcomes: Mapping[str, Outcome]) -> LogprobPairs:
    """Return a function that gives policy and reference logprobs with the recorded difference.

    Advantages depend only on the difference, so the reference logprobs are 0. The function raises NotRecordedError.
    """

    def logprobs(samples: list[Sample]) -> tuple[list[Floats], list[Floats]]:
        """Return [T] recorded differences as the policy's logprobs, and zeros as the reference model's."""
        gaps = _scatter_recorded(
            samples,
            lambda uuid: outcomes.get(uuid, NO_OUTCOME).reference_gap,
            "the log-probabilities of policy and reference model",
        )
        return gaps, [np.zeros_like(row) for row in gaps]

    return logprobs


def _scatter_recorded(samples: list[Sample], read: Callable[[str], Floats | None], what: str) -> list[Floats]:
    """Return each sample's recorded values per token, shape [T]. Raises NotRecordedError if an episode has none."""
    row_by_sample: dict[int, Floats] = {}
    for uuid in dict.fromkeys(sample.episode for sample in samples):
        own_samples = [sample for sample in samples if sample.episode == uuid]
        recorded = read(uuid)
        tokens = sum(positions.stop - positions.start for _, _, positions in list_sampled_runs(own_samples))
        if recorded is None or recorded.size != tokens or not np.isfinite(recorded).all():
            raise NotRecordedError(uuid, what)
        row_by_sample |= {
            id(sample): row for sample, row in zip(own_samples, scatter_tokens(own_samples, recorded), strict=True)
        }
    return [row_by_sample[id(sample)] for sample in samples]
