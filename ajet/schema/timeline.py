"""Timeline: a linear token sequence with a loss mask, from calls that extend each other exactly.

Invariant (kept by context_tracker, tested by properties): every sampled token of an episode is in exactly one timeline
with mask 1, however many calls repeat the token as context; `ids`, `mask`, `logprobs` and `versions` align.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ajet.schema.call import Floats, Ids


class SampledSpan(NamedTuple):
    """Tokens [start, stop) of the timeline are the reply of call `call`, sampled and trained here."""

    call: int
    start: int
    stop: int


@dataclass(slots=True)
class Timeline:
    """A token sequence to train on. Shapes: [T] tokens."""

    leaf: int
    """The call whose prompt and response are the timeline's ids."""
    agent: str
    target: str
    ids: Ids
    mask: npt.NDArray[np.bool_]
    """[T] True where the policy sampled the token for training in this timeline."""
    logprobs: Floats
    """[T] of the sampling distribution, 0 where mask is False."""
    logprobs_unit: Floats
    """[T] at temperature 1, 0 where mask is False."""
    versions: Ids
    """[T] lowest policy step of the sampled token, -1 where mask is False."""
    spans: tuple[SampledSpan, ...]
    adapter: str | None = None
    """The only adapter used and trained by the sampled tokens, as in `Terms.adapter`."""

    @property
    def sampled(self) -> int:
        """The number of tokens with mask 1."""
        return int(np.count_nonzero(self.mask))
