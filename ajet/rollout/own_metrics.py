"""What a workflow says beside its reward: numbers to average, and the rest to record.

Invariant: nothing that it says is lost: a number of `log_metrics`, however deep, is a metric; everything else, and the
fields of its own that an output has, is recorded with its metadata.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from numbers import Real
from typing import Any

from loguru import logger

from ajet.record.seldom import Seldom
from ajet.schema.task import WorkflowOutput

_said = Seldom(every=600)


def numbers_of(output: WorkflowOutput) -> dict[str, float]:
    """The numbers of `log_metrics`, those of nested ones as `outer/inner`."""
    return _apart(output.log_metrics, "")[0]


def metadata_of(output: WorkflowOutput) -> dict[str, Any]:
    """The metadata, with the output's own further fields and what of `log_metrics` is no number."""
    rest = _apart(output.log_metrics, "")[1]
    own = dict(output.model_extra or {})
    if rest:
        own["log_metrics"] = rest
    return {**own, **output.metadata}


def warn_of_near_names(output: WorkflowOutput) -> None:
    """Say of a field of its own that it is nearly the name of one that means something, once in ten minutes each."""
    for name in output.model_extra or {}:
        near = get_close_matches(name, WorkflowOutput.model_fields, 1, cutoff=0.8)
        if near and _said.due(name):
            logger.warning("WorkflowOutput({}=…) is recorded, and means nothing to ajet: is it {}?", name, near[0])


def _apart(given: Mapping[str, Any], prefix: str) -> tuple[dict[str, float], dict[str, Any]]:
    numbers: dict[str, float] = {}
    rest: dict[str, Any] = {}
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            inner, others = _apart(value, f"{name}/")
            numbers |= inner
            rest |= others
        elif isinstance(value, Real) or (getattr(value, "ndim", None) == 0 and hasattr(value, "dtype")):
            number = float(value)
            (numbers if math.isfinite(number) else rest)[name] = number
        else:
            rest[name] = value
    return numbers, rest
