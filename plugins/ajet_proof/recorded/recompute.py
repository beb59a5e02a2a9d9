"""Log-probabilities a second time: by the trainer's forward pass, at the weights of one policy version.

Invariant: tokens are held only to the weights that sampled them, and to the distribution that they were drawn from.
How far an honest engine may lie from the trainer is measured here, on the same tokens: packed otherwise and, below
float32, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ajet.context_tracker.packing import PackedRow, pack, placed
from ajet.rollout.components import choose_sampling
from ajet.schema.batch import Sample
from ajet.schema.call import Call, Floats
from ajet_proof.tokens.proof import Proof, compare, everything, samples_of
from ajet_proof.tokens.proof_gaps import FLOOR, Doubles, Noise, Spread, noise_of, spread_of
from ajet_proof.tokens.proof_lines import prove_rows, untruncated

if TYPE_CHECKING:
    from ajet.backbone.contract import RecordedScorer
    from ajet.config import AjetConfig
    from ajet.schema.episode import Episode, Split
    from ajet.schema.timeline import Timeline

ROW_TOKENS = 4096
"""Tokens of a row that is computed at once, where the run's own rows are longer."""
NOISE_TOKENS = 4096
"""Sampled tokens, about, that the machine's noise is measured on."""
SLACK = {"float32": 1e-3, "bfloat16": 0.03}
"""Probability mass that rounding may move over the border of top_p."""
WHOLE = (1.0, 1.0, -1)
"""(temperature, top_p, top_k): the model's own distribution."""

WRITTEN = -2
"""Stands for the policy version of tokens that were given to be learned from."""
Drawn = tuple[float, float, int]
Mask = npt.NDArray[np.bool_]


class Recomputation:
    """The log-probabilities of one policy version again. `tolerance` (nats) is for a single improbable token."""

    def __init__(self, scorer: RecordedScorer, settings: AjetConfig, *, version: int, tolerance: float) -> None:
        self._scorer, self._settings = scorer, settings
        self._version, self._tolerance = version, tolerance
        self._gaps: list[tuple[int, Split, str, float, Doubles]] = []
        self._measured: list[Sample] = []
        self._first: list[Floats] = []

    def hold(self, proof: Proof, episodes: Sequence[Episode], step: int, split: Split) -> int:
        """Hold what the version sampled in these episodes to the forward pass, packed as for training; answers how
        many tokens that were."""
        groups: dict[str, int] = {}
        lines: list[tuple[Episode, Timeline]] = []
        samples: list[Sample] = []
        for episode in episodes:
            group = groups.setdefault(episode.task.task_id, len(groups))
            made = everything(episode.calls)
            lines += [(episode, line) for line in made]
            samples += samples_of(made, episode.uuid, group)
        rows = self._rows(samples)
        wrong = prove_rows(samples, rows)
        proof.rows += len(rows)
        proof.wrong += wrong
        if wrong:
            return 0
        computed = self._scored(samples, rows)
        self._remember(samples, computed)
        where = [at_version(episode.calls, line.spans, line.ids.size, self._version) for episode, line in lines]
        gaps = [
            compare(proof, episode.calls, line, found, at, tolerance=self._tolerance, episode=episode.uuid)
            for (episode, line), found, at in zip(lines, computed, where, strict=True)
        ]
        self._gaps.append((step, split, "at temperature 1", 1.0, _joined(gaps)))
        kinds = {self._drawn(call, split) for episode in episodes for call in episode.calls}
        for drawn in sorted(kind for kind in kinds if kind is not None and kind != WHOLE):
            self._hold_drawn(proof, lines, samples, rows, where, drawn, step, split)
        return sum(int(at.sum()) for at in where)

    def spreads(self) -> list[tuple[int, Split, str, Spread]]:
        """(step, split, which log-probabilities, their gaps' distribution), where there are enough. Spends the
        scorer."""
        noise, floor = self._noise(), FLOOR[self._scorer.dtype]
        judged = [
            (step, split, which, spread_of(gaps, noise, floor, scale=scale))
            for step, split, which, scale, gaps in self._gaps
        ]
        return [(step, split, which, spread) for step, split, which, spread in judged if spread is not None]

    def _hold_drawn(
        self,
        proof: Proof,
        lines: Sequence[tuple[Episode, Timeline]],
        samples: Sequence[Sample],
        rows: Sequence[PackedRow],
        where: Sequence[Mask],
        drawn: Drawn,
        step: int,
        split: Split,
    ) -> None:
        """Hold the log-probabilities of the distribution that was sampled from."""
        temperature, top_p, top_k = drawn
        lowest: list[Floats]
        highest: list[Floats] | list[None]
        if top_p < 1 or top_k > 0:
            slack = SLACK[self._scorer.dtype]
            bounds = [self._scorer.truncated(row, temperature, top_p, top_k, slack=slack) for row in rows]
            lowest = placed(samples, rows, [low for low, _ in bounds])
            highest = placed(samples, rows, [high for _, high in bounds])
        else:
            lowest = self._scored(samples, rows, temperature)
            highest = [None] * len(lowest)
        gaps = []
        for (episode, line), low, high, at in zip(lines, lowest, highest, where, strict=True):
            mine = at.copy()
            for span in line.spans:
                mine[span.start : span.stop] &= self._drawn(episode.calls[span.call], split) == drawn
            gaps.append(
                compare(
                    proof, episode.calls, line, low, mine,
                    tolerance=self._tolerance, episode=episode.uuid, shaped=True, upper=high,
                )
            )  # fmt: skip
        self._gaps.append((step, split, "as sampled", max(1.0, 1 / temperature), _joined(gaps)))

    def _drawn(self, call: Call, split: Split) -> Drawn | None:
        """The distribution that a call was sampled from; None where the record does not tell, or it was greedy."""
        if not call.trained or call.temperature <= 0 or call.terms.constrained:
            return None
        meant = choose_sampling(self._settings, split)
        if untruncated(call) and split == "validation" and (meant.top_p < 1 or meant.top_k > 0):
            return None  # validation may have been drawn otherwise when the call was made
        if untruncated(call):
            return call.temperature, meant.top_p, meant.top_k
        return call.temperature, call.terms.top_p, call.terms.top_k

    def _rows(self, samples: Sequence[Sample]) -> list[PackedRow]:
        budget = min(self._settings.trainer_common.micro_batch_tokens, ROW_TOKENS)
        return pack(samples, budget, share_prefixes=self._scorer.shares_prefixes)

    def _scored(self, samples: Sequence[Sample], rows: Sequence[PackedRow], temperature: float = 1.0) -> list[Floats]:
        return placed(samples, rows, [self._scorer.logprobs(row, temperature) for row in rows])

    def _remember(self, samples: Sequence[Sample], computed: Sequence[Floats]) -> None:
        for sample, found in zip(samples, computed, strict=True):
            if sum(each.timeline.sampled for each in self._measured) < NOISE_TOKENS:
                self._measured.append(sample)
                self._first.append(found)

    def _noise(self) -> Noise:
        """The distance of the forward pass from itself."""
        samples, first = self._measured, _masked(self._measured, self._first)
        alone = pack(samples, 1, share_prefixes=False)
        differences = [first - _masked(samples, self._scored(samples, alone))]
        if self._scorer.dtype != "float32" and self._scorer.widen():
            differences.append(first - _masked(samples, self._scored(samples, self._rows(samples))))
        return noise_of(*differences)


def versions_of(call: Call) -> npt.NDArray[np.int64]:
    """[R] the policy version of each token of a reply; -1 where it is not one but a range, `WRITTEN` where nobody
    sampled it."""
    versions = np.full(call.response_ids.size, WRITTEN if call.terms.written else -1, np.int64)
    for run in call.versions:
        versions[run.first :] = run.low if run.low == run.high else -1
    return versions


def at_version(calls: Sequence[Call], spans: Sequence[Any], size: int, version: int) -> Mask:
    """[T] where a timeline with these spans has tokens that policy `version` sampled."""
    at = np.zeros(size, np.bool_)
    for span in spans:
        at[span.start : span.stop] = versions_of(calls[span.call])[: span.stop - span.start] == version
    return at


def _masked(samples: Sequence[Sample], values: Sequence[Floats]) -> Doubles:
    return _joined([found[sample.timeline.mask] for sample, found in zip(samples, values, strict=True)])


def _joined(parts: Sequence[npt.NDArray[Any]]) -> Doubles:
    return np.concatenate([np.zeros(0), *parts]).astype(np.float64)
