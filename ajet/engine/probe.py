"""WeightsProbe: identifies the weights of a remote server by their logprobs of a fixed text.

The trainer announces the logprobs with each policy version. Invariant: weights that the trainer did not announce never
pass. A server does not have a version if its logprobs differ by more than engine and trainer may differ
(`trainer_common.canary`). If several versions match, the oldest counts, because samples must never appear fresher than
they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

TEXT = "A policy is known by what it says of this text: one, two, three, four, and 12 + 30 = 42."
"""The scored text; all its tokens but the first are scored."""


def encode_probe_text(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of the probe text under the given tokenizer."""
    return tuple(int(token) for token in tokenizer.encode(TEXT, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class WeightsProbe:
    """The logprobs of a fixed text under each announced policy version."""

    ids: tuple[int, ...]
    tolerance: float
    """Maximum mean gap in nats per token."""
    logprobs: Mapping[int, tuple[float, ...]]
    """By version: the log-probabilities of `ids[1:]` at temperature 1."""

    def measure_gap(self, version: int, found: Sequence[float]) -> float:
        """Return the mean distance between a version's logprobs and measured ones, in nats per token.

        It is infinite for unknown versions.

        Args:
            found: logprobs that the server computed for the text.
        """
        if version not in self.logprobs or len(found) != len(self.logprobs[version]):
            return float("inf")
        return float(np.abs(np.asarray(found, np.float64) - np.asarray(self.logprobs[version], np.float64)).mean())

    def matches(self, version: int, found: Sequence[float]) -> bool:
        """Return True if weights of this version may have computed the logprobs `found`. NaN never matches."""
        return self.measure_gap(version, found) <= self.tolerance

    def find_oldest(self, found: Sequence[float]) -> int | None:
        """Return the oldest version whose logprobs match `found`, or None."""
        return next((version for version in sorted(self.logprobs) if self.matches(version, found)), None)

    def add_version(self, version: int, logprobs: Sequence[float], *, keep: int) -> WeightsProbe:
        """Return the probe with the logprobs of one more version.

        Of earlier versions, the first and the newest `keep` remain. Later versions are dropped: a run that resumed from
        an earlier checkpoint trains them anew.
        """
        earlier_versions = sorted(earlier for earlier in self.logprobs if earlier < version)
        by_version = {**self.logprobs, version: tuple(logprobs)}
        remaining = sorted({*earlier_versions[:1], *[*earlier_versions, version][-keep - 1 :]})
        return replace(self, logprobs={known_version: by_version[known_version] for known_version in remaining})

    def to_json(self) -> dict[str, Any]:
        """Return the probe as JSON values."""
        logprobs_by_version = {
            str(version): [round(value, 5) for value in values] for version, values in self.logprobs.items()
        }
        return {"ids": list(self.ids), "tolerance": self.tolerance, "said": logprobs_by_version}

    @classmethod
    def resume_from(
        cls, earlier: WeightsProbe | None, ids: tuple[int, ...], tolerance: float, *, version: int
    ) -> WeightsProbe:
        """Return the probe of a trainer that resumes from `version`, whose own logprobs are added later.

        Args:
            earlier: probe announced before the resume. Logprobs of versions below `version` are taken from it, if the
                text has the same ids.
            ids: token ids of the text.
            tolerance: largest distance of matching logprobs, in nats per token.
        """
        earlier_logprobs = earlier.logprobs if earlier is not None and earlier.ids == ids else {}
        return cls(
            ids,
            tolerance,
            {
                known_version: logprob_row
                for known_version, logprob_row in earlier_logprobs.items()
                if known_version < version
            },
        )

    @classmethod
    def from_json(cls, state: Mapping[str, Any] | None) -> WeightsProbe | None:
        """Rebuild a probe from the result of `to_json`. None stays None."""
        if state is None:
            return None
        logprobs_by_version = {int(version): tuple(values) for version, values in state["said"].items()}
        return cls(tuple(state["ids"]), float(state["tolerance"]), logprobs_by_version)
