"""The whole way from rewards to weights teaches a model: credit, packing, loss, optimizer, new weights in the engine.

The task: repeat the last token of the prompt. Tokens are drawn from the engine's own module tree, so that a policy
that did not reach it would show as no progress.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ajet.algorithm import credit
from ajet.backbone.local.trainer import Trainer
from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.task import Task
from tests.local_fixtures import config_of, timeline_of, tiny_qwen3

VOCABULARY, PROMPT, TASKS, REPEATS = 6, 3, 16, 12


def sample_groups(model, draw):
    """[TASKS] groups of one-token replies and their rewards."""
    prompts = torch.from_numpy(draw.integers(0, VOCABULARY, (TASKS, PROMPT)))
    with torch.no_grad():
        probs = torch.softmax(model(input_ids=prompts, use_cache=False).logits[:, -1].float(), -1).double().numpy()
    groups = []
    for task, (prompt, row) in enumerate(zip(prompts.tolist(), probs, strict=True)):
        episodes = []
        for repeat, token in enumerate(draw.choice(VOCABULARY, REPEATS, p=row / row.sum())):
            logprobs = [0.0] * PROMPT + [float(np.log(row[token]))]
            timeline = timeline_of([*prompt, int(token)], [(PROMPT, PROMPT + 1)], logprobs)
            verdict = Verdict(float(token == prompt[-1]))
            about = dict(uuid=f"{task}/{repeat}", task=Task(task_id=str(task)), repeat=repeat, step=0, split="train")
            episodes.append(Episode(**about, verdict=verdict, timelines=[timeline]))
        groups.append(Group(Task(task_id=str(task)), task, episodes))
    return groups


@pytest.mark.parametrize(
    "estimator, rank, dtype",
    [
        ("grpo", 0, torch.float32),
        ("grpo", 0, torch.bfloat16),
        ("grpo", 8, torch.float32),
        ("rloo", 0, torch.float32),
        ("reinforce_plus_plus", 0, torch.float32),
    ],
)
def test_it_learns_to_repeat_a_token(estimator, rank, dtype):
    model = tiny_qwen3(vocab_size=VOCABULARY, dtype=dtype, tie_word_embeddings=False)
    config = config_of(algorithm__adv_estimator=estimator, lora__rank=rank, optim__lr=0.02 if rank else 0.01)
    trainer = Trainer(model, config)
    draw = np.random.default_rng(0)
    rewards, gaps = [], []
    for step in range(50):
        groups = sample_groups(trainer.policy.engine_model, draw)
        rewards.append(np.mean([episode.reward for group in groups for episode in group.episodes]))
        batch = credit(groups, config, step=step)
        if batch.samples:
            gaps.append(trainer.update(batch).get("logprob_gap_max", 0.0))
    assert np.mean(rewards[:5]) < 0.3, "it cannot do it at first"
    assert np.mean(rewards[-5:]) > 0.9, f"rewards: {np.round(rewards[::5], 2)}"
    assert max(gaps) < (1e-3 if dtype == torch.float32 else 0.2), "engine and trainer are the same policy"
