"""Recomputes log-probabilities with the trainer's forward pass, with the weights of one policy version at a time.

Invariant: a token is compared only under the weights and the distribution that sampled it. The allowed distance of
engine and trainer is measured on the same tokens: packed differently, and below float32 also in float32.
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
from ajet_proof.tokens.proof import Proof, build_full_timelines, build_samples, compare_logprobs
from ajet_proof.tokens.proof_gaps import FLOOR, Doubles, Noise, Spread, measure_noise, measure_spread
from ajet_proof.tokens.proof_lines import is_untruncated, prove_rows

if TYPE_CHECKING:
    from ajet.backbone.local.scorer import LocalScorer
    from ajet.config import AjetConfig
    from ajet.schema.episode import Episode, Split, Timeline

ROW_TOKENS = 4096
"""Maximum number of tokens of a computed row; the run's own limit applies if it is lower."""
NOISE_TOKENS = 4096
"""Approximate number of sampled tokens used to measure numerical noise."""
SLACK = {"float32": 1e-3, "bfloat16": 0.03}
"""Probability mass that rounding may move across the top_p border."""
FULL_DISTRIBUTION = (1.0, 1.0, -1)
"""(temperature, top_p, top_k) of the untruncated distribution at temperature 1."""

WRITTEN = -2
"""Stands for a policy version where the tokens come from supervised data, not from a policy."""
SamplingDistribution = tuple[float, float, int]
Mask = npt.NDArray[np.bool_]


class LogprobRecomputation:
    """Recomputes the log-probabilities of the tokens that one policy version sampled.

    Args:
        scorer: Forward pass with the weights of `version`.
        version: The policy version.
        tolerance: Allowed difference of a single improbable token, in nats.
    """

    def __init__(self, scorer: LocalScorer, settings: AjetConfig, *, version: int, tolerance: float) -> None:
        """Start without episodes. Gaps and noise samples are collected by `check_episodes`."""
        self._scorer, self._settings = scorer, settings
        self._version, self._tolerance = version, tolerance
        self._gaps: list[tuple[int, Split, str, float, Doubles]] = []
        self._measured_samples: list[Sample] = []
        self._first_logprobs: list[Floats] = []

    def check_episodes(self, proof: Proof, episodes: Sequence[Episode], step: int, split: Split) -> int:
        """Compare the tokens that this policy version sampled in some episodes with the forward pass.

        The episodes are packed into rows as for training. Findings are added to `proof`.

        Returns:
            The number of compared tokens.
        """
        groups: dict[str, int] = {}
        lines: list[tuple[Episode, Timeline]] = []
        samples: list[Sample] = []
        for episode in episodes:
            # Episodes of one task share their prompts, which are packed once.
            group = groups.setdefault(episode.task.task_id, len(groups))
            timelines = build_full_timelines(episode.calls)
            lines += [(episode, line) for line in timelines]
            samples += build_samples(timelines, episode.uuid, group)
        rows = self._pack_rows(samples)
        wrong_tokens = prove_rows(samples, rows)
        proof.rows += len(rows)
        proof.wrong += wrong_tokens
        if wrong_tokens:
            return 0
        computed = self._score_rows(samples, rows)
        self._collect_noise_samples(samples, computed)
        version_masks = [
            mask_version(episode.calls, line.spans, line.ids.size, self._version) for episode, line in lines
        ]
        gaps = [
            compare_logprobs(
                proof, episode.calls, line, logprobs, version_mask, tolerance=self._tolerance, episode=episode.uuid
            )
            for (episode, line), logprobs, version_mask in zip(lines, computed, version_masks, strict=True)
        ]
        self._gaps.append((step, split, "at temperature 1", 1.0, _join_arrays(gaps)))
        distributions = {self._find_distribution(call, split) for episode in episodes for call in episode.calls}
        for distribution in sorted(kind for kind in distributions if kind is not None and kind != FULL_DISTRIBUTION):
            self._check_sampled_distribution(proof, lines, samples, rows, version_masks, distribution, step, split)
        return sum(int(version_mask.sum()) for version_mask in version_masks)

    def measure_spreads(self) -> list[tuple[int, Split, str, Spread]]:
        """Return how far recorded and recomputed log-probabilities differ, compared with measured numerical noise.

        The scorer cannot be used afterwards.

        Returns:
            (step, split, kind of log-probabilities, distribution) for each file and kind with enough tokens.
        """
        noise, floor = self._measure_noise(), FLOOR[self._scorer.dtype]
        judged = [
            (step, split, which, measure_spread(gaps, noise, floor, scale=scale))
            for step, split, which, scale, gaps in self._gaps
        ]
        return [(step, split, which, spread) for step, split, which, spread in judged if spread is not None]

    def _check_sampled_distribution(
        self,
        proof: Proof,
        lines: Sequence[tuple[Episode, Timeline]],
        samples: Sequence[Sample],
        rows: Sequence[PackedRow],
        version_masks: Sequence[Mask],
        distribution: SamplingDistribution,
        step: int,
        split: Split,
    ) -> None:
        """Compare the log-probabilities under the distribution used for sampling, at its temperature, top_p and top_k.

        Args:
            rows: The packed rows of `samples`.
            version_masks: For each timeline, True at the tokens that this policy version sampled.
            distribution: (temperature, top_p, top_k); calls with another distribution are left out.
        """
        temperature, top_p, top_k = distribution
        lower_logprobs: list[Floats]
        upper_logprobs: list[Floats] | list[None]
        if top_p < 1 or top_k > 0:
            # Rounding may move a token across the border of top_p, so a range of log-probabilities is allowed.
            slack = SLACK[self._scorer.dtype]
            bounds = [self._scorer.truncated(row, temperature, top_p, top_k, slack=slack) for row in rows]
            lower_logprobs = placed(samples, rows, [low for low, _ in bounds])
            upper_logprobs = placed(samples, rows, [high for _, high in bounds])
        else:
            lower_logprobs = self._score_rows(samples, rows, temperature)
            upper_logprobs = [None] * len(lower_logprobs)
        gaps = []
        for (episode, line), low, high, version_mask in zip(
            lines, lower_logprobs, upper_logprobs, version_masks, strict=True
        ):
            line_mask = version_mask.copy()
            for span in line.spans:
                # A timeline may have calls of several distributions: compare the calls of this one only.
                line_mask[span.start : span.stop] &= (
                    self._find_distribution(episode.calls[span.call], split) == distribution
                )
            gaps.append(
                compare_logprobs(
                    proof, episode.calls, line, low, line_mask,
                    tolerance=self._tolerance, episode=episode.uuid, shaped=True, upper=high,
                )
            )  # fmt: skip
        # Logits are divided by the temperature, and their rounding with them.
        self._gaps.append((step, split, "as sampled", max(1.0, 1 / temperature), _join_arrays(gaps)))

    def _find_distribution(self, call: Call, split: Split) -> SamplingDistribution | None:
        """Return the distribution that a call was sampled from, as (temperature, top_p, top_k).

        A call that records no truncation gets the configured top_p and top_k.

        Returns:
            None for a call that is not trained, greedy, or constrained to a format, and for a validation call that
            records no truncation although the settings have one.
        """
        if not call.trained or call.temperature <= 0 or call.terms.constrained:
            return None
        configured = choose_sampling(self._settings, split)
        if is_untruncated(call) and split == "validation" and (configured.top_p < 1 or configured.top_k > 0):
            return None  # the validation settings may have been different when the call was made
        if is_untruncated(call):
            return call.temperature, configured.top_p, configured.top_k
        return call.temperature, call.terms.top_p, call.terms.top_k

    def _pack_rows(self, samples: Sequence[Sample]) -> list[PackedRow]:
        """Pack samples into rows of at most ROW_TOKENS tokens, or the run's own limit if it is lower."""
        budget = min(self._settings.trainer_common.micro_batch_tokens, ROW_TOKENS)
        return pack(samples, budget, share_prefixes=self._scorer.shares_prefixes)

    def _score_rows(
        self, samples: Sequence[Sample], rows: Sequence[PackedRow], temperature: float = 1.0
    ) -> list[Floats]:
        """Return the log-probabilities of each sample's tokens at a temperature, as one array [T] per sample."""
        return placed(samples, rows, [self._scorer.logprobs(row, temperature) for row in rows])

    def _collect_noise_samples(self, samples: Sequence[Sample], computed: Sequence[Floats]) -> None:
        """Keep samples with their log-probabilities until NOISE_TOKENS sampled tokens are stored for the noise
        measurement."""
        for sample, logprobs in zip(samples, computed, strict=True):
            if sum(measured.timeline.sampled for measured in self._measured_samples) < NOISE_TOKENS:
                self._measured_samples.append(sample)
                self._first_logprobs.append(logprobs)

    def _measure_noise(self) -> Noise:
        """Measure numerical noise: how far two computations of the same log-probabilities differ.

        The second one has each sample in a row of its own, and below float32 a third one uses float32 weights.
        """
        samples, first_logprobs = self._measured_samples, _join_masked(self._measured_samples, self._first_logprobs)
        # A row limit of 1 token gives each sample a row of its own.
        single_sample_rows = pack(samples, 1, share_prefixes=False)
        differences = [first_logprobs - _join_masked(samples, self._score_rows(samples, single_sample_rows))]
        if self._scorer.dtype != "float32" and self._scorer.widen():
            differences.append(
                first_logprobs - _join_masked(samples, self._score_rows(samples, self._pack_rows(samples)))
            )
        return measure_noise(*differences)


def list_token_versions(call: Call) -> npt.NDArray[np.int64]:
    """Return the policy version of each token of a reply, as an array [R] for R tokens.

    -1 stands for a range of versions, `WRITTEN` for given replies (supervised tokens).
    """
    versions = np.full(call.response_ids.size, WRITTEN if call.terms.written else -1, np.int64)
    for run in call.versions:
        versions[run.first :] = run.low if run.low == run.high else -1
    return versions


def mask_version(calls: Sequence[Call], spans: Sequence[Any], size: int, version: int) -> Mask:
    """Return a mask [T] of the tokens in a timeline that one policy version sampled.

    Args:
        calls: The episode's model calls.
        spans: The timeline's ranges of sampled tokens.
        size: Number of tokens T of the timeline.
        version: The policy version.
    """
    is_of_version = np.zeros(size, np.bool_)
    for span in spans:
        is_of_version[span.start : span.stop] = (
            list_token_versions(calls[span.call])[: span.stop - span.start] == version
        )
    return is_of_version


def _join_masked(samples: Sequence[Sample], values: Sequence[Floats]) -> Doubles:
    """Return the values of all sampled tokens (mask 1) of the samples, as one array in float64."""
    return _join_arrays(
        [sample_values[sample.timeline.mask] for sample, sample_values in zip(samples, values, strict=True)]
    )


def _join_arrays(parts: Sequence[npt.NDArray[Any]]) -> Doubles:
    """Concatenate arrays in float64. Without arrays, the result is empty."""
    return np.concatenate([np.zeros(0), *parts]).astype(np.float64)
