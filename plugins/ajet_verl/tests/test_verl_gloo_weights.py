"""Weights to servers of their own, over gloo: what is sent arrives, bit for bit and in order, at each of them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.verl_fixtures import without_verl

pytestmark = [pytest.mark.verl, without_verl, pytest.mark.slow]


def test_every_server_gets_every_weight():
    import torch
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    from ajet_verl.cpu import gloo_weights  # noqa: F401 - registers it

    weights = {
        "embedding": torch.randn(50, 7),
        "half": torch.randn(3, 5).to(torch.bfloat16).t(),  # not contiguous
        "one number": torch.tensor(2.5),
        "nothing": torch.empty(0, 4),
    }
    make = CheckpointEngineRegistry.get("gloo")
    trainers = [make(bucket_size=1 << 20, is_master=True), make(bucket_size=1 << 20)]
    servers = [make(bucket_size=1 << 20) for _ in range(2)]
    ends = [*trainers, *servers]
    walked = []

    def gathered():
        for name, weight in weights.items():
            walked.append(name)
            yield name, weight

    async def received(server):
        return [item async for item in server.receive_weights()]

    for _ in range(2):  # a second sending has a group of its own
        told = [end.prepare() for end in ends]
        actor, rollout = make.build_topology(2, 2, told)
        arguments = [{name: values[at] for name, values in side.items()} for side in (actor, rollout) for at in (0, 1)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda pair: pair[0].init_process_group(**pair[1]), zip(ends, arguments, strict=True)))
            tasks = [lambda trainer=trainer: asyncio.run(trainer.send_weights(gathered())) for trainer in trainers]
            tasks += [lambda server=server: asyncio.run(received(server)) for server in servers]
            answers = list(pool.map(lambda task: task(), tasks))
        for end in ends:
            end.finalize()
        assert sorted(walked) == sorted([*weights, *weights]), "each trainer rank takes part in gathering each weight"
        walked.clear()
        for have in answers[2:]:
            assert [name for name, _ in have] == list(weights)
            for name, weight in have:
                assert weight.dtype == weights[name].dtype and torch.equal(weight, weights[name])
