"""What models said of the trained tokens of a step that is over, from the outcomes that it left: they stand in for the
critic and the reference model where credit is computed again.

Invariant: nothing is made up. Numbers that are missing, not finite, or not as many as the episode has trained tokens
are an error that names the episode.
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
    """A record lacks what a model said of an episode, which it names. `what`: whose numbers."""

    def __init__(self, uuid: str, what: str) -> None:
        super().__init__(uuid)
        self.what = what


def make_recorded_critic(outcomes: Mapping[str, Outcome]) -> CriticFunction:
    """The critic's values. Raises NotRecordedError."""
    return lambda samples: _scatter_recorded(
        samples, lambda uuid: outcomes.get(uuid, NO_OUTCOME).values, "the critic's values"
    )


def make_recorded_reference(outcomes: Mapping[str, Outcome]) -> LogprobPairs:
    """Log-probabilities whose difference is the recorded one: it is all that credit reads of the two models. Raises
    NotRecordedError."""

    def logprobs(samples: list[Sample]) -> tuple[list[Floats], list[Floats]]:
        gaps = _scatter_recorded(
            samples,
            lambda uuid: outcomes.get(uuid, NO_OUTCOME).reference_gap,
            "the log-probabilities of policy and reference model",
        )
        return gaps, [np.zeros_like(row) for row in gaps]

    return logprobs


def _scatter_recorded(samples: list[Sample], read: Callable[[str], Floats | None], what: str) -> list[Floats]:
    rows: dict[int, Floats] = {}
    for uuid in dict.fromkeys(sample.episode for sample in samples):
        own = [sample for sample in samples if sample.episode == uuid]
        recorded = read(uuid)
        tokens = sum(where.stop - where.start for _, _, where in list_sampled_runs(own))
        if recorded is None or recorded.size != tokens or not np.isfinite(recorded).all():
            raise NotRecordedError(uuid, what)
        rows |= {id(sample): row for sample, row in zip(own, scatter_tokens(own, recorded), strict=True)}
    return [rows[id(sample)] for sample in samples]
