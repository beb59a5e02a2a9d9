"""The canary: a check after each weight transfer that engine and trainer compute the same model.

It compares the log-probabilities of the same tokens by both sides. Invariant: the check draws no random number and
leaves engine and trainer unchanged. A single mismatch may come from a reply in flight during the transfer. Two
mismatches in a row mean two different models: the run then trains on samples of another policy.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from loguru import logger

from ajet.config.schema.trainer_common import CANARY_FLOAT32, CANARY_ROUNDED
from ajet.schema.call import Floats
from ajet.schema.errors import UserError

PROMPT = "The canary is asked after every update of the weights: one, two, three, four,"
REPLY = 12  # tokens


class Canary:
    """Compares the log-probabilities of engine and trainer after each transfer.

    The run is stopped after two mismatches in a row.

    Args:
        tolerance: as in `trainer_common.canary`: nats per token, "auto", or None to disable the check.
        rounded: True if the trainer computes in a type with fewer bits than float32.
    """

    def __init__(self, tolerance: float | str | None, *, rounded: bool) -> None:
        if isinstance(tolerance, str):
            tolerance = CANARY_ROUNDED if rounded else CANARY_FLOAT32
        self.tolerance: float | None = tolerance
        self._mismatches = 0

    def judge(self, gap: float, *, version: int, samplers: Collection[str] = ()) -> None:
        """Compare a measured gap with the tolerance, and warn if it is larger.

        Args:
            gap: Mean absolute difference of the log-probabilities by engine and trainer, in nats per token.
            version: Policy version of the transferred weights.
            samplers: names of the remote samplers that sampled the tokens. Empty if this run's engine did.

        Raises:
            UserError: second mismatch in a row.
        """
        if self.tolerance is None or gap <= self.tolerance:  # NaN fails the comparison and counts as a mismatch
            self._mismatches = 0
            return
        self._mismatches += 1
        engine = f"the samplers' ({', '.join(sorted(samplers))})" if samplers else "the engine's"
        logger.warning(
            "policy version {}: the log-probabilities of {} differ from the trainer's by {:.3g} nats per token, "
            "more than {:g}",
            version,
            engine,
            gap,
            self.tolerance,
        )
        if self._mismatches > 1 and samplers:
            raise UserError(
                f"The samplers' log-probabilities do not match policy version {version}: they differ from the "
                f"trainer's by {gap:.3g} nats per token, in two steps in a row. Samplers: "
                f"{', '.join(sorted(samplers))}.",
                where=f"policy version {version}",
                expected=f"at most {self.tolerance:g} nats (ajet.trainer_common.canary)",
                do="stop the sampler whose weights or engine are not those it reports (ajet audit RUN --step "
                "lists the sampler of each episode), or set another rollout.engine there; then restart this "
                "run",
            )
        if self._mismatches > 1:
            raise UserError(
                "Engine and trainer compute different models: their log-probabilities of the same tokens differ "
                f"by {gap:.3g} nats per token, after two weight transfers in a row.",
                where=f"policy version {version}",
                expected=f"at most {self.tolerance:g} nats (ajet.trainer_common.canary)",
                do="set another rollout.engine (docs/models.md compares them), or model.dtype: float32; a "
                "larger trainer_common.canary allows larger differences, null allows any",
            )


def compute_gap(engine: Floats, trainer: Floats) -> float:
    """Return the mean absolute difference of two logprob arrays of shape [T], in nats."""
    return float(np.abs(np.asarray(engine, np.float64) - np.asarray(trainer, np.float64)).mean())
