"""Two agents with opposite rewards on the same prompts: each adapter learns its own, which no single model could."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from ajet.algorithm import assign_credit
from ajet.backbone.local.trainer import Trainer
from ajet.config.schema.trainer_common import AdapterConfig
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.transformers import TransformersEngine
from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.task import Task
from tests.support.local_fixtures import config_of, timeline_of, tiny_qwen3

VOCABULARY, PROMPT, TASKS, REPEATS, STEPS = 6, 3, 12, 8, 40
AGENTS = ("last", "first")
"""Rewarded for repeating the last token of the prompt, and the first one."""


async def sampled(engine, prompt, key, agent):
    request = TokenRequest(prompt, Sampling(max_tokens=1), DrawKey(*key), adapter=agent)
    [chunk] = [chunk async for chunk in engine.generate(request)]
    return chunk


async def groups_of(engine, draw, step):
    """A group for each task and agent, all sampled together."""
    prompts = draw.integers(0, VOCABULARY, (TASKS, PROMPT)).astype(np.int32)
    prompts[:, 0] = (prompts[:, -1] + draw.integers(1, VOCABULARY, TASKS)) % VOCABULARY  # what one wants, the other not
    keys = [(step, task, repeat, at) for task in range(TASKS) for repeat in range(REPEATS) for at in range(2)]
    chunks = await asyncio.gather(*(sampled(engine, prompts[key[1]], key, AGENTS[key[3]]) for key in keys))
    groups = [Group(Task(task_id=str(at)), at, []) for at in range(2 * TASKS)]
    for (_, task, repeat, at), chunk in zip(keys, chunks, strict=True):
        ids = [*prompts[task].tolist(), *chunk.ids]
        line = timeline_of(ids, [(PROMPT, PROMPT + 1)], [0.0] * PROMPT + chunk.logprobs)
        line = replace(line, agent=AGENTS[at], target=AGENTS[at], adapter=AGENTS[at])
        wanted = ids[PROMPT - 1] if AGENTS[at] == "last" else ids[0]
        group = groups[2 * task + at]
        about = dict(uuid=f"{task}/{repeat}/{at}", task=group.task, repeat=repeat, step=step, split="train")
        group.episodes.append(Episode(**about, verdict=Verdict(float(ids[-1] == wanted)), timelines=[line]))
    return groups


@pytest.mark.extra_slow
def test_each_of_two_agents_with_opposite_rewards_learns_its_own():
    adapters = {name: AdapterConfig(rank=8) for name in AGENTS}
    config = config_of(lora__adapters=adapters, optim__lr=0.01)
    trainer = Trainer(tiny_qwen3(vocab_size=VOCABULARY, tie_word_embeddings=False), config)
    engine = TransformersEngine(trainer.policy.model, max_num_seqs=2 * TASKS * REPEATS, adapters=AGENTS)
    draw = np.random.default_rng(0)
    rewards = []
    for step in range(STEPS):
        groups = asyncio.run(groups_of(engine, draw, step))
        rewards.append([np.mean([e.reward for group in groups[at::2] for e in group.episodes]) for at in range(2)])
        batch = assign_credit(groups, config, step=step)
        if batch.samples:
            with engine.paused():
                assert trainer.update(batch)["logprob_gap_max"] < 1e-3, "engine and trainer are the same policies"
            engine.weights_changed(trainer.version)
    engine.close()
    assert np.mean(rewards[:2], 0).max() < 0.4, "they cannot do it at first"
    assert np.mean(rewards[-5:], 0).min() > 0.85, f"rewards: {np.round(rewards[::5], 2)}"
