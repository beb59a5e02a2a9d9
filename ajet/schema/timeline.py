"""Timeline: a linear token sequence with a loss mask, made of one or more calls that extend each other exactly.

Invariant (kept by context_tracker, tested by properties): every sampled token of an episode is in exactly one
timeline with mask 1, however many calls replayed it as context; `ids`, `mask`, `logprobs` and `versions` align.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Floats, Ids


class SampledSpan(NamedTuple):
    """Tokens [start, stop) of the timeline are call `call`'s reply, sampled here and trained here."""

    call: int
    start: int
    stop: int


@dataclass(slots=True)
class Timeline:
    """Shapes: [T] tokens."""

    leaf: int
    """The call whose prompt + response are this timeline's ids."""
    agent: str
    target: str
    ids: Ids
    mask: npt.NDArray[np.bool_]
    """[T] True where the policy sampled the token and it is this timeline's to train."""
    logprobs: Floats
    """[T] of the distribution sampled from; 0 where mask is False."""
    logprobs_unit: Floats
    """[T] at temperature 1; 0 where mask is False."""
    versions: Ids
    """[T] lowest policy step that sampled the token; -1 where mask is False."""
    spans: tuple[SampledSpan, ...]
    adapter: str | None = None
    """That all its sampled tokens are of, and the only one that they train; see `Terms.adapter`."""

    @property
    def sampled(self) -> int:
        """The number of tokens with mask 1."""
        return int(np.count_nonzero(self.mask))
