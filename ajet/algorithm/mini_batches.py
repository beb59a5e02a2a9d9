"""Which samples make which optimizer step.

Invariant: every sample is in exactly one mini batch, however many rows its episode became; a group stays whole
wherever there are groups enough. Optimizer steps are counted in groups and episodes, never in rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ajet.schema.batch import Sample


def mini_batches(samples: Sequence[Sample], count: int) -> list[list[int]]:
    """Indices of the samples of each optimizer step: whole groups (they share prefixes), or whole episodes when
    there are fewer groups than steps; in order, of nearly equal numbers."""
    units: dict[Any, list[int]] = {}
    for index, sample in enumerate(samples):
        units.setdefault(sample.group, []).append(index)
    if len(units) < count:
        units = {}
        for index, sample in enumerate(samples):
            units.setdefault(sample.episode, []).append(index)
    members = list(units.values())
    count = min(count, len(members))
    edges = [round(part * len(members) / count) for part in range(count + 1)] if count else []
    return [sum(members[start:stop], []) for start, stop in zip(edges, edges[1:], strict=False)]
