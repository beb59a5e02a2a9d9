"""The alarm on engine and trainer that do not compute the same: what is said and recorded of a tightened bound.

Invariant: the bound of an update follows from what was measured of the weights that it begins with
(`Correction.tightened`), never from earlier steps, so that a resumed run has the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from loguru import logger

GAP, CAP = "is_tightened_gap", "is_tightened_cap"


def tightened_metrics(gap: float, cap: float) -> dict[str, float]:
    """The metrics of an update whose importance weights are bounded at `cap` because engine and trainer are `gap` nats
    a token apart."""
    return {GAP: gap, CAP: cap}


def warn_of_mismatch(metrics: Mapping[str, float], alarm: float | None) -> None:
    """Says what `tightened_metrics` hold, where they are among `metrics`."""
    if GAP in metrics and alarm is not None:
        logger.warning(
            "engine and trainer are {:.3g} nats a token apart with the same weights, more than {:g} "
            "(algorithm.mismatch_alarm): this update bounds importance weights at {:.3g}",
            metrics[GAP],
            alarm,
            metrics[CAP],
        )
