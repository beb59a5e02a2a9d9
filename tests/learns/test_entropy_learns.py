"""Clip-Cov and KL-Cov do what they are for: a policy that may say several right things keeps saying several of them,
while the same run without them ends with one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ajet.config.schema.algorithm import CovarianceConfig
from ajet.schema.episode import Episode
from ajet.schema.task import Task
from tests.support.local_fixtures import config_of
from tests.support.toy_talks import Learner, Talk

pytestmark = [pytest.mark.slow, pytest.mark.extra_slow]
VOCABULARY, RIGHT, TASKS, ATTEMPTS, STEPS = 6, 3, 8, 8, 20
"""Half of the tokens are right: a policy that keeps to them all the same has an entropy of ln 3 = 1.1 nats."""
SEEDS = (0, 1, 2, 3)


def entropy_and_reward(**algorithm: Any) -> tuple[float, float]:
    """Return the means of `play_run` over seeds: how much entropy one run keeps depends on chance."""
    entropies, rewards = zip(*(play_run(seed, **algorithm) for seed in SEEDS), strict=True)
    return float(np.mean(entropies)), float(np.mean(rewards))


def play_run(seed: int, **algorithm: Any) -> tuple[float, float]:
    """Over the last five steps: nats a reply, by the mean of -log p of what was sampled; and the mean reward."""
    changes = {f"algorithm__{name}": value for name, value in algorithm.items()}
    settings = config_of(optim__lr=0.01, mini_batch_num=4, algorithm__clip_high=0.8, **changes)
    learner, draw = Learner(settings, vocabulary=VOCABULARY, slots=64), np.random.default_rng(seed)
    nats, rewards = [], []
    for step in range(1, STEPS + 1):
        shown = draw.integers(0, VOCABULARY, TASKS)

        async def play(talk: Talk, shown: Any = shown) -> Episode:
            (said,) = await talk.say([VOCABULARY - 1, int(shown[talk.key[1]])])
            return talk.ended(float(said < RIGHT))

        groups = learner.play([Task(task_id=str(at)) for at in range(TASKS)], ATTEMPTS, play, step)
        episodes = [episode for group in groups for episode in group.episodes]
        nats.append(-float(np.mean([episode.calls[0].logprobs[0] for episode in episodes])))
        rewards.append(float(np.mean([episode.reward for episode in episodes])))
        learner.learn(groups, step)
    learner.engine.close()
    return float(np.mean(nats[-5:])), float(np.mean(rewards[-5:]))


def test_entropy_is_kept_where_the_tokens_that_take_it_are_held():
    plain = entropy_and_reward()
    clipped = entropy_and_reward(policy_loss="clip_cov", covariance=CovarianceConfig(share=0.6, low=0.0, high=50.0))
    held = entropy_and_reward(policy_loss="kl_cov", covariance=CovarianceConfig(share=0.6, beta=3.0))
    assert plain[0] < 0.3, plain
    assert min(clipped[0], held[0]) > 0.5, (plain, clipped, held)
    assert min(plain[1], clipped[1], held[1]) > 0.97, (plain, clipped, held)
