"""A sample of every training step, proven before the step's update changes the weights.

Invariant: it changes nothing: no weight, no episode, no random generator of the run. Which episodes it takes follows
from the seed and the step. A wrong token is an error in the log and a metric; the run goes on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loguru import logger

from ajet.context_tracker.proof import Proof, compare, everything, samples_of
from ajet.run.assembly import renderer_of
from ajet.run.prove import prove_episode
from ajet.run.recompute import at_version

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig
    from ajet.schema.batch import TrainingBatch
    from ajet.schema.episode import Episode

NAMED = 5
"""Wrong tokens a step that the log names."""


class StepProof:
    """Proves `context_tracker.proof_sample` episodes a step."""

    def __init__(self, settings: AjetConfig, backbone: Backbone) -> None:
        self._settings, self._backbone = settings, backbone
        self._words = renderer_of(settings, backbone.tokenizer) if backbone.tokenizer is not None else None

    def metrics(self, episodes: Sequence[Episode], batch: TrainingBatch) -> dict[str, float]:
        """`proof/…` of the step, and `mismatch_kl` and `logprob_gap_max` where the update will not compare them: with
        `top_p` or `top_k`, and in a step without one."""
        settings = self._settings
        played = [episode for episode in episodes if episode.sampled_tokens]
        count = min(settings.context_tracker.proof_sample, len(played))
        if not count or self._words is None:
            return {}
        chosen = random.Random(f"{settings.seed}/{batch.step}").sample(played, count)
        proof = Proof()
        for episode in chosen:
            proof.add(prove_episode(episode, settings, self._words, newest=self._backbone.version))
        for token in proof.wrong[:NAMED]:
            logger.error("step {}: a wrong token: {}", batch.step, token)
        metrics: dict[str, float] = {
            "proof/episodes": proof.episodes,
            "proof/tokens": sum(tally.checked for tally in proof.counts.values()),
            "proof/wrong_tokens": len(proof.wrong),
        }
        truncates = settings.rollout.top_p < 1.0 or settings.rollout.top_k > 0
        if proof.ok and (truncates or not batch.samples):
            self._recompute(proof, chosen)
            if proof.counts["sampled"].compared:
                metrics["mismatch_kl"] = proof.mismatch_kl
                metrics["logprob_gap_max"] = proof.counts["sampled"].gap_max
        return metrics

    def _recompute(self, proof: Proof, episodes: Sequence[Episode]) -> None:
        lines = [(episode, line) for episode in episodes for line in everything(episode.calls)]
        samples = [sample for episode, line in lines for sample in samples_of([line], episode.uuid)]
        computed = self._backbone.logprobs(samples, temperature=1.0)
        for (episode, line), found in zip(lines, computed, strict=True):
            at = at_version(episode.calls, line.spans, line.ids.size, self._backbone.version)
            compare(proof, episode.calls, line, found, at, tolerance=math.inf, episode=episode.uuid)
