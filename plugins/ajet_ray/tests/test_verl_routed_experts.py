"""Experts of a tiny mixture of experts, from verl's server to a trainer that replays them.

verl replays in Megatron and VeOmni, which need GPUs. Here the trainer is transformers' model with VeOmni's replay
controller, verl's own class, hooked into its routers by the test. The server's routers are rounded to bfloat16, and so
choose other experts than the trainer's for some tokens.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from loguru import logger

from ajet.context_tracker import timelines
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.model_limits import warn_unreplayed_experts
from ajet.schema.episode import Episode, Group
from ajet.schema.errors import EngineFailure
from ajet_ray.routed_experts import drop_experts
from ajet_ray.rows import build_empty_row, build_rows, build_unscored_rows
from ajet_ray.tickets import find_oldest_version
from tests.support.gateways import client_of, renderer_of_style, start_gateway
from tests.support.local_fixtures import episode_of
from tests.support.tiny_models import tiny
from tests.support.verl_fixtures import without_verl

pytestmark = [pytest.mark.verl, pytest.mark.slow, without_verl]

ROUTED = "enable_rollout_routing_replay"
SHAPE = LAYERS, CHOSEN = 3, 8
REPLY = 24


@contextmanager
def routed_by(model: Any, choose: Any) -> Iterator[None]:
    """Within the block, `choose(router, indices)` has the last word on the experts of each token."""
    hooks = []
    for layer in model.model.layers:

        def hook(router: Any, inputs: Any, output: Any) -> Any:
            logits, _, indices = output
            chosen = choose(router, indices)
            weights = logits.float().softmax(-1).gather(1, chosen)
            if router.norm_topk_prob:
                weights = weights / weights.sum(-1, keepdim=True)
            return logits, weights.to(logits.dtype), chosen

        hooks.append(layer.mlp.gate.register_forward_hook(hook))
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def forward(model: Any, ids: list[int]) -> tuple[Any, Any]:
    """The log-probabilities [T, V] of the next token, and the experts [T, layers, experts per token]."""
    import torch

    found = []

    def note(_: Any, indices: Any) -> Any:
        found.append(indices)
        return indices

    with torch.no_grad(), routed_by(model, note):
        rows = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return rows, torch.stack(found, 1)


class Servers:
    """verl's client over a model in the precision of a server; it computes each prompt anew, as without a cache."""

    def __init__(self, model: Any, *, reports: bool = True) -> None:
        self._model, self._reports = model, reports
        self.answers: list[Any] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        import torch

        generator = torch.Generator().manual_seed(len(self.answers))
        ids, logprobs = list(prompt_ids), []
        for _ in range(min(REPLY, sampling_params["max_tokens"])):
            rows, experts = forward(self._model, ids)
            token = int(torch.multinomial(rows[-1].exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(rows[-1, token]))
        versions = {"global_steps": 0, "min_global_steps": 0, "max_global_steps": 0}
        self.answers.append(
            SimpleNamespace(
                token_ids=ids[len(prompt_ids) :],
                log_probs=logprobs,
                stop_reason="completed",
                extra_fields=versions,
                routed_experts=experts.numpy().astype(np.uint8) if self._reports else None,
            )
        )
        return self.answers[-1]


def replay_experts(replay: Any, router: Any, indices: Any) -> Any:
    return replay.on_router_forward(router, indices, indices)


def play(model: Any, **servers: Any) -> tuple[Episode, Servers]:
    """An episode of two turns, and a third that begins anew: two timelines."""
    from ajet_verl.agent.engine import ServerEngine

    client, words = Servers(model, **servers), renderer_of_style()
    engine: Any = ServerEngine(
        client, max_model_len=500, vocabulary=len(words.tokenizer), server="vllm", routed_shape=SHAPE
    )

    async def converse(endpoint: Any) -> None:
        ask = client_of(endpoint).chat.completions.create
        talk: list[Any] = [{"role": "user", "content": "bread?"}]
        for question in ("milk?", None):
            reply = await ask(model="m", messages=talk)
            talk += [reply.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": question}]
        await ask(model="m", messages=[{"role": "user", "content": "bread? Now."}])

    with start_gateway(words=words, engine=engine) as on:
        session = on.open(sampling=Sampling(200))
        asyncio.run(converse(session.endpoint()))
        capture = session.close()
    lines, _ = timelines(capture.calls)
    episode = replace(episode_of(1.0, (1,)), calls=capture.calls, messages=capture.messages, timelines=lines)
    return episode, client


@pytest.fixture(scope="module")
def trainer() -> Any:
    size = len(renderer_of_style().tokenizer)
    more: Any = {"num_hidden_layers": LAYERS, "num_local_experts": 64, "num_experts_per_tok": CHOSEN}
    return tiny("Qwen 3, mixture of experts", vocab_size=size, norm_topk_prob=True, **more)


@pytest.fixture(scope="module")
def played(trainer: Any) -> tuple[Episode, Servers]:
    server = copy.deepcopy(trainer)
    for layer in server.model.layers:
        layer.mlp.gate.weight.data = layer.mlp.gate.weight.data.bfloat16().float()
    return play(server)


def test_rows_carry_experts_of_every_token(played):
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    episode, servers = played
    first, second, third = servers.answers
    rows = build_rows(episode, group_order=0, routed_shape=SHAPE)
    assert [row["routed_experts"].shape for row in rows] == [
        (len(row["prompt_ids"]) + len(row["response_ids"]) - 1, *SHAPE) for row in rows
    ]
    talk, other = (row["routed_experts"] for row in rows)
    np.testing.assert_array_equal(talk[: len(first.routed_experts)], first.routed_experts, "as they were sampled with")
    np.testing.assert_array_equal(talk[len(first.routed_experts) :], second.routed_experts[len(first.routed_experts) :])
    np.testing.assert_array_equal(other, third.routed_experts)
    taken = [AgentLoopOutput(**row).as_dict() for row in rows]
    queued = list_of_dict_to_tensordict([{"routed_experts": each["routed_experts"]} for each in taken])
    for row, of_verl in zip(rows, queued["routed_experts"].unbind(), strict=True):
        np.testing.assert_array_equal(of_verl[:-1].numpy(), row["routed_experts"])
        assert len(of_verl) == len(row["prompt_ids"]) + len(row["response_ids"]) and not of_verl[-1].any()
    assert [len(row["routed_experts"]) for row in build_unscored_rows(episode, routed_shape=SHAPE)]


def test_each_token_has_its_experts_once(played):
    episode, _ = played
    stored = [call.routed_experts for call in episode.calls]
    tokens = sum(len(call.suffix_ids) + len(call.response_ids) for call in episode.calls)
    assert all(stored) and sum(len(each.experts) for each in stored) <= tokens


def test_replayed_experts_remove_the_mismatch(trainer, played):
    import torch
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
    from verl.utils.veomni.router_replay import VeOmniRouterReplay

    episode, _ = played
    gaps: dict[str, list[float]] = {"native": [], "replayed": []}
    changed = 0
    for row in build_rows(episode, group_order=0, routed_shape=SHAPE):
        ids, start = row["prompt_ids"] + row["response_ids"], len(row["prompt_ids"])
        targets = AgentLoopOutput(**row).as_dict()["routed_experts"].long()
        native, own = forward(trainer, ids)
        replay = VeOmniRouterReplay()
        replay.begin_replay()
        replay.begin_microbatch(targets=list(targets.unbind(1)))
        with torch.no_grad(), routed_by(trainer, partial(replay_experts, replay)):
            replayed = trainer(torch.tensor([ids])).logits[0].log_softmax(-1)
        assert replay.num_fired == replay.num_targets == LAYERS
        changed += int((own.sort(-1)[0] != targets.sort(-1)[0])[:-1].any(-1).sum())
        for at in start + np.flatnonzero(row["response_mask"]):
            engine = row["response_logprobs"][at - start]
            gaps["native"].append(abs(float(native[at - 1, ids[at]]) - engine))
            gaps["replayed"].append(abs(float(replayed[at - 1, ids[at]]) - engine))
    native_gap, replayed_gap = (float(np.mean(gaps[name])) for name in ("native", "replayed"))
    print(f"{changed} other choices; mean gap {native_gap:.4f} nats without replay, {replayed_gap:.4f} with it")
    assert changed and replayed_gap < native_gap / 2


def test_episodes_without_tokens_have_padding_experts():
    (row,) = build_rows(episode_of(1.0, ()), group_order=0, routed_shape=SHAPE)
    assert row["routed_experts"].shape == (1, *SHAPE)
    assert "routed_experts" not in build_empty_row(episode_of(1.0, ()), {}, 0)


def test_lost_experts_refuse_the_rows(played):
    """The record's episodes have none; rows without them would be trained with other experts."""
    episode, _ = played
    group = drop_experts(Group(episode.task, 0, [episode]))
    assert build_rows(group.episodes[0], group_order=0)
    with pytest.raises(ValueError, match="its routed experts were lost with the process that ran it"):
        build_rows(group.episodes[0], group_order=0, routed_shape=SHAPE)


def test_resumed_runs_use_no_earlier_group():
    """Records have no experts to replay."""
    for mode in ("ajet_sync", "ajet_colocate_async"):
        sampler = {"max_off_policy_threshold": 4, "max_off_policy_strategy": "drop"}
        trainer = {"trainer": {"v1": {"trainer_mode": mode, "sampler": sampler}}}
        oldest = [
            find_oldest_version(trainer | {"actor_rollout_ref": {"rollout": {ROUTED: replays}}}, 7)
            for replays in (False, True)
        ]
        assert oldest[0] <= 7 < oldest[1]


def test_models_without_replay_are_named(tmp_path):
    logged: list[str] = []
    handle = logger.add(logged.append, format="{message}")
    for name, experts in (("experts", {"num_experts": 64}), ("dense", {})):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(experts))
        warn_unreplayed_experts(folder)
    logger.remove(handle)
    (line,) = logged
    assert "mixture of 64 experts" in line and "no router replay" in line


def test_servers_without_experts_fail_the_call(trainer):
    from ajet_verl.agent.engine import ServerEngine

    engine = ServerEngine(
        Servers(trainer, reports=False), max_model_len=50, vocabulary=97, server="vllm", routed_shape=SHAPE
    )

    async def ask() -> None:
        async for _ in engine.generate(TokenRequest(np.arange(3, dtype=np.int32), Sampling(2), DrawKey(0, 0, 0, 0))):
            pass

    with pytest.raises(EngineFailure, match=r"routed experts of shape \(4, 3, 8\).*sent none"):
        asyncio.run(ask())
