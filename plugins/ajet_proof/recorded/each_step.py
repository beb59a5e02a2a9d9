"""A sample of every training step, proven: its ids from the record alone, its log-probabilities where the update does
not compare them.

Invariant: it changes nothing: no weight, no episode, no random generator of the run. Which episodes it takes follows
from the seed and the step. A wrong token is an error in the log and a metric; the run goes on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from loguru import logger

from ajet.backbone.contract import score_samples
from ajet_proof.config import ProofKeys
from ajet_proof.recorded.prove import prove_episode
from ajet_proof.recorded.recompute import at_version
from ajet_proof.tokens.proof import Proof, compare, everything, samples_of

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig
    from ajet.schema.episode import Episode
    from ajet.tokens import Renderer

NAMED = 5
"""Wrong tokens a step that the log names."""


class StepProof:
    """Proves `context_tracker.proof_sample` episodes a step. `words`: the run's renderer; None: a model without tokens,
    of which nothing is proven."""

    def __init__(self, settings: AjetConfig, words: Renderer | None) -> None:
        self._settings, self._words = settings, words
        self._sample = ProofKeys.of(settings).proof_sample

    def metrics(self, episodes: Sequence[Episode], step: int, newest: Callable[[Episode], int]) -> dict[str, float]:
        """`proof/…` of the step. `newest`: the latest policy version that can have sampled an episode."""
        chosen = self._chosen(episodes, step)
        if not chosen:
            return {}
        proof = self._ids(chosen, newest)
        for token in proof.wrong[:NAMED]:
            logger.error("step {}: a wrong token: {}", step, token)
        return {
            "proof/episodes": proof.episodes,
            "proof/tokens": sum(tally.checked for tally in proof.counts.values()),
            "proof/wrong_tokens": len(proof.wrong),
        }

    def recomputed(self, episodes: Sequence[Episode], step: int, backbone: Backbone) -> dict[str, float]:
        """`mismatch_kl` and `logprob_gap_max` of the sample, by the weights that `backbone` has now: for a step whose
        update will not compare them, which is one with `top_p` or `top_k`, and one without an update."""
        chosen = self._chosen(episodes, step)
        if not chosen or not (proof := self._ids(chosen, lambda _: backbone.version)).ok:
            return {}
        lines = [(episode, line) for episode in chosen for line in everything(episode.calls)]
        samples = [sample for episode, line in lines for sample in samples_of([line], episode.uuid)]
        with backbone.scorer() as scorer:
            tokens = self._settings.trainer_common.micro_batch_tokens
            computed = score_samples(scorer, samples, tokens=tokens, temperature=1.0)
        for (episode, line), found in zip(lines, computed, strict=True):
            at = at_version(episode.calls, line.spans, line.ids.size, backbone.version)
            compare(proof, episode.calls, line, found, at, tolerance=math.inf, episode=episode.uuid)
        if not proof.counts["sampled"].compared:
            return {}
        return {"mismatch_kl": proof.mismatch_kl, "logprob_gap_max": proof.counts["sampled"].gap_max}

    def _chosen(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        played = [episode for episode in episodes if episode.sampled_tokens]
        count = min(self._sample, len(played)) if self._words is not None else 0
        return random.Random(f"{self._settings.seed}/{step}").sample(played, count)

    def _ids(self, chosen: Sequence[Episode], newest: Callable[[Episode], int]) -> Proof:
        proof = Proof()
        for episode in chosen:
            proof.add(prove_episode(episode, self._settings, self._words, newest=newest(episode)))
        return proof
