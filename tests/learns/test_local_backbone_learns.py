"""The whole way from rewards to weights teaches a model: credit, packing, loss, optimizer, new weights in the engine.

The task: repeat the last token of the prompt. The tokens are the engine's, so that weights which did not reach it would
show as no progress.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from ajet.algorithm import assign_credit
from ajet.backbone.local.trainer import Trainer
from ajet.config import Experiment
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.transformers import TransformersEngine
from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.task import Task
from tests.support.local_fixtures import config_of, timeline_of, tiny_qwen3

VOCABULARY, PROMPT, TASKS, REPEATS = 6, 3, 16, 12


async def sample(engine, prompt, key):
    request = TokenRequest(prompt, Sampling(max_tokens=1), DrawKey(*key))
    [chunk] = [chunk async for chunk in engine.generate(request)]
    return chunk


async def sample_groups(engine, draw, step):
    """[TASKS] groups of one-token replies and their rewards."""
    prompts = draw.integers(0, VOCABULARY, (TASKS, PROMPT)).astype(np.int32)
    keys = [(step, task, repeat, 0) for task in range(TASKS) for repeat in range(REPEATS)]
    chunks = await asyncio.gather(*(sample(engine, prompts[key[1]], key) for key in keys))
    groups = [Group(Task(task_id=str(task)), task, []) for task in range(TASKS)]
    for (_, task, repeat, _), chunk in zip(keys, chunks, strict=True):
        assert chunk.version == engine.version
        ids = [*prompts[task].tolist(), *chunk.ids]
        timeline = timeline_of(ids, [(PROMPT, PROMPT + 1)], [0.0] * PROMPT + chunk.logprobs)
        verdict = Verdict(float(ids[-1] == ids[-2]))
        about = dict(uuid=f"{task}/{repeat}", task=groups[task].task, repeat=repeat, step=step, split="train")
        groups[task].episodes.append(Episode(**about, verdict=verdict, timelines=[timeline]))
    return groups


@pytest.mark.extra_slow
@pytest.mark.parametrize(
    "settings",
    [
        {"policy_loss": "gspo", "clip_low": 0.003, "clip_high": 0.004},
        {"policy_loss": "cispo"},
        {"policy_loss": "sapo"},
        {"policy_loss": "clip_cov", "covariance": {"share": 0.05, "low": 0.1}},
        {"policy_loss": "kl_cov", "covariance": {"share": 0.02}},
        {"policy_loss": "clipped", "is_cap": 2.0, "is_mode": "geometric_mask", "is_floor": 0.5},
        {"preset": "minirl"},
        {"preset": "grpo"},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_each_loss_learns_to_repeat_a_token(settings):
    """With two optimizer steps to a batch, so that ratios move."""
    tree = {"trainer_common": {"mini_batch_num": 2, "use_kl_loss": False, "algorithm": settings}}
    config = Experiment.from_dict({"ajet": tree}, base=Path.cwd()).ajet
    config.trainer_common.optim.lr = 0.01
    learns(tiny_qwen3(vocab_size=VOCABULARY, tie_word_embeddings=False), config)


@pytest.mark.parametrize(
    "estimator, rank, dtype",
    [
        pytest.param("grpo", 0, torch.bfloat16, marks=pytest.mark.extra_slow),
        pytest.param("rloo", 0, torch.float32, marks=pytest.mark.extra_slow),
        pytest.param("grpo", 0, torch.float32, marks=pytest.mark.extra_slow),
        pytest.param("grpo", 8, torch.float32, marks=pytest.mark.extra_slow),
        pytest.param("reinforce_plus_plus", 0, torch.float32, marks=pytest.mark.extra_slow),
        pytest.param("gdpo", 0, torch.float32, marks=pytest.mark.extra_slow),
    ],
)
def test_it_learns_to_repeat_a_token(estimator, rank, dtype):
    """That a run of this backbone learns is in test_spine_learns.py. Estimators differ in the advantages alone, which
    are held to their formulas in tests/algorithm/test_credit_assignment.py; adapters and dtype in the trainer
    (tests/backbone/test_local_trainer.py)."""
    model = tiny_qwen3(vocab_size=VOCABULARY, dtype=dtype, tie_word_embeddings=False)
    config = config_of(algorithm__adv_estimator=estimator, lora__rank=rank, optim__lr=0.01)
    gaps = learns(model, config)
    assert max(gaps) < (1e-3 if dtype == torch.float32 else 0.2), "engine and trainer are the same policy"


def learns(model, config):
    """The gaps between engine and trainer at each step of a run that learned it."""
    trainer = Trainer(model, config)
    engine = TransformersEngine(trainer.policy.model, max_num_seqs=TASKS * REPEATS)
    draw = np.random.default_rng(0)
    rewards, gaps = [], []
    for step in range(40):
        groups = asyncio.run(sample_groups(engine, draw, step))
        rewards.append(np.mean([episode.reward for group in groups for episode in group.episodes]))
        batch = assign_credit(groups, config, step=step)
        if batch.samples:
            with engine.paused():
                gaps.append(trainer.update(batch)["logprob_gap_max"])
            engine.weights_changed(trainer.version)
    engine.close()
    assert np.mean(rewards[:2]) < 0.35, "it cannot do it at first"
    assert np.mean(rewards[-5:]) > 0.9, f"rewards: {np.round(rewards[::5], 2)}"
    return gaps
