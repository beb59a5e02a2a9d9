"""What a workflow says beside its reward: numbers to average, and the rest to record.

Invariant: nothing that it says is lost: a number of `log_metrics`, however deep, is a metric; everything else, and the
fields of its own that an output has, is recorded with its metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from ajet.schema.task import WorkflowOutput


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
            numbers[name] = float(value)
        else:
            rest[name] = value
    return numbers, rest
