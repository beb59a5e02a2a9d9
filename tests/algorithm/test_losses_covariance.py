"""Clip-Cov and KL-Cov: which tokens are chosen, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ajet.algorithm.losses.contract import compute_covariances, draw_between, select_largest

LOGPROBS, ADVANTAGES = np.array([-1.0, -2.0, -0.5, -4.5]), np.array([1.0, -1.0, 2.0, -2.0])


def test_covariances_by_hand():
    """Their mean is the covariance of both rows."""
    found = compute_covariances(LOGPROBS, ADVANTAGES)
    np.testing.assert_allclose(found, [1.0 * 1, 0.0 * -1, 1.5 * 2, -2.5 * -2])
    np.testing.assert_allclose(found.mean(), np.cov(LOGPROBS, ADVANTAGES, ddof=0)[0, 1])


def test_kl_cov_takes_the_largest():
    assert select_largest(compute_covariances(LOGPROBS, ADVANTAGES), 0.5).tolist() == [False, False, True, True]
    assert select_largest(np.zeros(3), 1e-4).tolist() == [True, False, False], "one at least, the first of equals"
    assert select_largest(np.zeros(0), 0.5).size == 0


def test_clip_cov_takes_some_between_its_bounds():
    many = np.tile([0.5, 2.0, 3.0, 7.0], 50)
    first, again, other = (draw_between(many, 0.1, 1.0, 5.0, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.sum() == 20 and set(many[first]) == {2.0, 3.0}
    assert (first == again).all() and (first != other).any(), "chance is the step's own"
    assert draw_between(many, 1.0, 1.0, 5.0, np.random.default_rng(0)).sum() == 100
    assert not draw_between(many, 0.5, 8.0, 9.0, np.random.default_rng(0)).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_the_trainer_chooses_over_the_whole_step_however_it_is_cut_into_passes(name):
    import torch

    from ajet.backbone.local.trainer import Trainer
    from ajet.schema.batch import TrainingBatch
    from tests.support.local_fixtures import config_of, random_samples, tiny_qwen3, weights_of

    found = []
    for tokens in (12, 4096):
        cov = {"algorithm__covariance__share": 0.2, "algorithm__covariance__low": 0.01}
        config = config_of(algorithm__policy_loss=name, micro_batch_tokens=tokens, mini_batch_num=2, **cov)
        trainer = Trainer(tiny_qwen3(), config)
        metrics = trainer.update(TrainingBatch(1, random_samples()))
        found.append(weights_of(trainer))
        assert (metrics["clip_fraction"] > 0) == (name == "clip_cov")
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-3)
