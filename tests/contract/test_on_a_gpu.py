"""What the engine and the trainer compute another way on a GPU comes to what they compute on the CPU.

`make gpu-check` runs it. Elsewhere it is left out, since both sides would be the CPU, but with AJET_TEST_DEVICE=cpu,
which shows that the tests themselves work.
"""

from __future__ import annotations

import asyncio
import copy
import os
from typing import Any

import numpy as np
import pytest
import torch

from ajet.backbone.local.flat_weights import FlatWeights
from ajet.backbone.local.trainer import Trainer
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.transformers import TransformersEngine
from ajet.engine.transformers.sampling import Sampler
from ajet.schema.batch import TrainingBatch
from tests.support.local_fixtures import VOCABULARY, config_of, random_samples, tiny_qwen3, weights_of

NAMED = os.environ.get("AJET_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NAMED == "cuda" and not torch.cuda.is_available(), reason="it needs a GPU"),
]


@pytest.fixture(autouse=True)
def no_tf32():
    """Whose products are a thousand times less exact than float32's."""
    torch.backends.cuda.matmul.allow_tf32 = False


def played(model: Any, prompts: list[np.ndarray], settings: Sampling) -> list[tuple[list[int], list[float]]]:
    """The replies to all at once, and their logprobs."""
    engine = TransformersEngine(model, max_num_seqs=len(prompts))

    async def one(number: int) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        logprobs: list[float] = []
        async for chunk in engine.generate(TokenRequest(prompts[number], settings, DrawKey(0, 0, number, 0))):
            ids += chunk.ids
            logprobs += chunk.logprobs
        return ids, logprobs

    async def every() -> list[tuple[list[int], list[float]]]:
        return await asyncio.gather(*map(one, range(len(prompts))))

    try:
        return asyncio.run(every())
    finally:
        engine.close()


@pytest.mark.parametrize("settings", [Sampling(12, temperature=0.0), Sampling(12), Sampling(12, top_p=0.8, top_k=20)])
def test_replies_are_those_of_the_cpu(settings):
    """Prompts of several lengths, some alike, so that prompts, stretches behind a kept prefix and steps are computed;
    the draws are counted, and so the same."""
    draw = np.random.default_rng(0)
    shared = draw.integers(0, VOCABULARY, 20).astype(np.int32)
    prompts = [draw.integers(0, VOCABULARY, 3 + 5 * k).astype(np.int32) for k in range(4)] + [shared] * 2
    prompts.append(np.concatenate([shared, draw.integers(0, VOCABULARY, 6).astype(np.int32)]))
    model = tiny_qwen3()
    here, there = played(copy.deepcopy(model), prompts, settings), played(model.to(NAMED), prompts, settings)
    for (ids, logprobs), (other_ids, others) in zip(here, there, strict=True):
        assert ids == other_ids
        np.testing.assert_allclose(others, logprobs, atol=1e-3)


def test_probabilities_are_those_of_the_cpu():
    draw = np.random.default_rng(0)
    logits, numbers = torch.from_numpy(draw.normal(0, 2, (40, 5000)).astype(np.float32)), draw.random(40)
    settings = [Sampling(1)] * 20 + [Sampling(1, temperature=0.7, top_p=0.8)] * 20
    here, there = Sampler().draw(logits, settings, numbers), Sampler().draw(logits.to(NAMED), settings, numbers)
    np.testing.assert_allclose(there.logprobs_unit, here.logprobs_unit, atol=1e-4)
    assert list(there.ids) == list(here.ids)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_updates_are_those_of_the_cpu(checkpointing):
    """Three of them over groups that share prompts and replies: attention over trees, its gradient, the optimizer."""
    model, config = tiny_qwen3(), config_of(optim__lr=1e-3, gradient_checkpointing=checkpointing)
    here, there = Trainer(copy.deepcopy(model), config), Trainer(model.to(NAMED), config)
    for step in range(1, 4):
        told = [each.update(TrainingBatch(step, random_samples(step))) for each in (here, there)]
        assert told[1]["grad_norm"] == pytest.approx(told[0]["grad_norm"], rel=1e-3)
    assert there.policy.weights.values.device.type == NAMED.partition(":")[0]
    np.testing.assert_allclose(weights_of(there).cpu().numpy(), weights_of(here).numpy(), atol=2e-4)


def test_masters_are_placed_among_those_that_round_to_the_weights():
    values = torch.nn.Parameter(torch.randn(64, 32, device=NAMED).to(torch.bfloat16))
    weights = FlatWeights([("w", values)])
    before = weights.values.clone()
    weights.dither(7)
    master = weights.master(0, weights.size)
    assert torch.equal(master.to(torch.bfloat16), before) and not torch.equal(master, before.float())
