"""Proves a sample of the episodes of every training step, during training.

Token ids are derived again from the episode alone. Log-probabilities are recomputed in steps whose update does not
compare them. Invariant: the proof changes no weight, episode or random generator of the run; seed and step decide the
sample. A wrong token is logged as an error and counted in a metric, and the run continues.
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
from ajet_proof.recorded.recompute import mask_version
from ajet_proof.tokens.proof import Proof, build_full_timelines, build_samples, compare_logprobs

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig
    from ajet.schema.episode import Episode
    from ajet.tokens import Renderer

NAMED = 5
"""Maximum number of wrong tokens logged for one step."""


class StepProof:
    """Proves `context_tracker.proof_sample` episodes of each training step.

    Args:
        settings: The run's settings.
        renderer: Renders and tokenizes prompts as in the run, or None for a model without tokens, which skips the
            proof.
    """

    def __init__(self, settings: AjetConfig, renderer: Renderer | None) -> None:
        self._settings, self._renderer = settings, renderer
        self._sample = ProofKeys.of(settings).proof_sample

    def metrics(self, episodes: Sequence[Episode], step: int, newest: Callable[[Episode], int]) -> dict[str, float]:
        """Prove the token ids of a sample of a step's episodes.

        Args:
            newest: returns the highest policy version that can have sampled an episode.

        Returns:
            The metrics `proof/episodes`, `proof/tokens` and `proof/wrong_tokens`, or {} without a sample.
        """
        sampled = self._sample_episodes(episodes, step)
        if not sampled:
            return {}
        proof = self._prove_ids(sampled, newest)
        for token in proof.wrong[:NAMED]:
            logger.error("step {}: a token of a recorded episode is wrong: {}", step, token)
        return {
            "proof/episodes": proof.episodes,
            "proof/tokens": sum(tally.checked for tally in proof.counts.values()),
            "proof/wrong_tokens": len(proof.wrong),
        }

    def recomputed(self, episodes: Sequence[Episode], step: int, backbone: Backbone) -> dict[str, float]:
        """Recompute the log-probabilities of a sample of a step's episodes with the present weights of `backbone`.

        Called for steps whose update does not compare log-probabilities: steps with `top_p` or `top_k`, and steps
        without an update.

        Returns:
            The metrics `mismatch_kl` and `logprob_gap_max` in nats, or {} if no token can be compared.
        """
        sampled = self._sample_episodes(episodes, step)
        if not sampled or not (proof := self._prove_ids(sampled, lambda _: backbone.version)).ok:
            return {}
        episode_timelines = [(episode, line) for episode in sampled for line in build_full_timelines(episode.calls)]
        samples = [sample for episode, line in episode_timelines for sample in build_samples([line], episode.uuid)]
        with backbone.scorer() as scorer:
            tokens = self._settings.trainer_common.micro_batch_tokens
            computed = score_samples(scorer, samples, tokens=tokens, temperature=1.0)
        for (episode, line), logprobs in zip(episode_timelines, computed, strict=True):
            version_mask = mask_version(episode.calls, line.spans, line.ids.size, backbone.version)
            # Only metrics are wanted here: the infinite tolerance reports no token as wrong.
            compare_logprobs(
                proof, episode.calls, line, logprobs, version_mask, tolerance=math.inf, episode=episode.uuid
            )
        if not proof.counts["sampled"].compared:
            return {}
        return {"mismatch_kl": proof.mismatch_kl, "logprob_gap_max": proof.counts["sampled"].gap_max}

    def _sample_episodes(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        """Draw up to `proof_sample` episodes with sampled tokens at random. Seed and step decide which."""
        with_tokens = [episode for episode in episodes if episode.sampled_tokens]
        count = min(self._sample, len(with_tokens)) if self._renderer is not None else 0
        return random.Random(f"{self._settings.seed}/{step}").sample(with_tokens, count)

    def _prove_ids(self, chosen: Sequence[Episode], newest: Callable[[Episode], int]) -> Proof:
        """Derive the token ids of the chosen episodes again, and return the sum of their proofs."""
        proof = Proof()
        for episode in chosen:
            proof.add(prove_episode(episode, self._settings, self._renderer, newest=newest(episode)))
        return proof
