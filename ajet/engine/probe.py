"""Probe: what each version of a policy says of one text, by which the weights of a server elsewhere are known.

Invariant: weights that were not announced are not taken for ones that were: a server whose log-probabilities of the
text are further from a version's than engine and trainer may be (`trainer_common.canary`) does not have that version.
Versions that lie closer together cannot be told apart by it; then the oldest counts, so that nothing passes for fresher
than it may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

TEXT = "A policy is known by what it says of this text: one, two, three, four, and 12 + 30 = 42."
"""Whose tokens are scored, all but the first."""


def encode_probe_text(tokenizer: Any) -> tuple[int, ...]:
    """The ids that a probe by this tokenizer asks about."""
    return tuple(int(token) for token in tokenizer.encode(TEXT, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class WeightsProbe:
    """The log-probabilities of a fixed prompt by each announced version, by which a server's weights are known."""

    ids: tuple[int, ...]
    tolerance: float
    """Nats a token, on average."""
    logprobs: Mapping[int, tuple[float, ...]]
    """By version: the log-probabilities of `ids[1:]` at temperature 1."""

    def measure_gap(self, version: int, found: Sequence[float]) -> float:
        """Nats a token between what a version says and `found`; infinite for a version that is not known."""
        if version not in self.logprobs or len(found) != len(self.logprobs[version]):
            return float("inf")
        return float(np.abs(np.asarray(found, np.float64) - np.asarray(self.logprobs[version], np.float64)).mean())

    def matches(self, version: int, found: Sequence[float]) -> bool:
        """Whether `found` can be that version's; a number that is none matches nothing."""
        return self.measure_gap(version, found) <= self.tolerance

    def find_oldest(self, found: Sequence[float]) -> int | None:
        """The oldest version that can have said it."""
        return next((version for version in sorted(self.logprobs) if self.matches(version, found)), None)

    def add_version(self, version: int, logprobs: Sequence[float], *, keep: int) -> WeightsProbe:
        """This probe with one version more: of those before, the first one and the newest `keep` stay."""
        known = {**{one: row for one, row in self.logprobs.items() if one < version}, version: tuple(logprobs)}
        staying = {*sorted(known)[:1], *sorted(known)[-keep - 1 :]}
        return replace(self, logprobs={one: known[one] for one in sorted(staying)})

    def to_json(self) -> dict[str, Any]:
        """The probe as JSON values."""
        rows = {str(version): [round(value, 5) for value in values] for version, values in self.logprobs.items()}
        return {"ids": list(self.ids), "tolerance": self.tolerance, "said": rows}

    @classmethod
    def resume_from(
        cls, earlier: WeightsProbe | None, ids: tuple[int, ...], tolerance: float, *, version: int
    ) -> WeightsProbe:
        """The probe of a trainer that goes on from `version`, of which it says nothing yet: what an `earlier` one said
        of versions before stays, where it asked the same."""
        earlier_logprobs = earlier.logprobs if earlier is not None and earlier.ids == ids else {}
        return cls(ids, tolerance, {one: row for one, row in earlier_logprobs.items() if one < version})

    @classmethod
    def from_json(cls, state: Mapping[str, Any] | None) -> WeightsProbe | None:
        """The probe that `state` came of; None for None."""
        if state is None:
            return None
        rows = {int(version): tuple(values) for version, values in state["said"].items()}
        return cls(tuple(state["ids"]), float(state["tolerance"]), rows)
