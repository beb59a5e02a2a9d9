"""Images on verl: what its servers, its rows and its workers are given."""

from __future__ import annotations

import asyncio
import inspect
import re
from types import SimpleNamespace

import numpy as np
import pytest

from ajet.context_tracker import cut_over_length, timelines
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.model_limits import ModelLimits
from ajet.engine.scripted import ScriptedEngine
from ajet.gateway import Gateway
from ajet.schema.episode import Episode, Verdict
from ajet.schema.task import Task
from ajet.tokens import Renderer
from ajet_verl.config import compose_verl_config
from tests.support.gateways import post
from tests.support.image_fixtures import seeing_renderer
from tests.support.verl_fixtures import experiment, without_verl
from tutorial.example_vision.colours import data_url, question, square

pytestmark = [pytest.mark.verl, pytest.mark.slow, without_verl]
URL = data_url(square("blue", 28, 42))


def played(renderer: Renderer, turns: list[dict]) -> Episode:
    """An episode of one conversation, scored."""
    engine = ScriptedEngine(["a"] * len(turns), encode=renderer.encode, end_id=renderer.end_ids[0])
    gateway = Gateway(engine, renderer, max_model_len=2000, max_response_tokens=50).start()
    try:
        session = gateway.open("episode", key=(0, 0, 0), sampling=Sampling(50), trainable=None)
        messages: list[dict] = []
        for turn in turns:
            messages.append(turn)
            reply = post(session("a", "a", None), {"model": "m", "messages": messages}).json()
            messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        capture = session.close()
    finally:
        gateway.close()
    lines, _ = timelines(capture.calls)
    return Episode(
        "e",
        Task(),
        0,
        1,
        "train",
        verdict=Verdict(1.0),
        calls=capture.calls,
        messages=capture.messages,
        timelines=lines,
    )


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_a_server_gets_pictures_and_ids_as_it_wants_them(server):
    from ajet_verl.agent.engine import ServerEngine

    asked = []

    class Client:
        async def generate(self, request_id, *, prompt_ids, sampling_params, **shown):
            asked.append((prompt_ids, shown))
            return SimpleNamespace(token_ids=[5], log_probs=[-1.0], stop_reason="completed", extra_fields={})

    renderer = seeing_renderer()
    ids = renderer.render([question(URL, "?"), {"role": "assistant", "content": "a"}, question(URL, "?")]).ids
    tokens = renderer.images
    engine = ServerEngine(Client(), max_model_len=500, vocabulary=len(renderer.tokenizer), server=server, images=tokens)

    async def reply():
        request = TokenRequest(ids, Sampling(4, stop_ids=(5,)), DrawKey(0, 0, 0, 0), (URL, URL))
        return [chunk async for chunk in engine.generate(request)]

    (chunk,) = asyncio.run(reply())
    assert chunk.ids == [5]
    ((prompt, shown),) = asked
    assert [(each.mode, each.size) for each in shown["image_data"]] == [("RGB", (28, 42))] * 2
    assert prompt.count(tokens.token_id) == (2 if server == "vllm" else 2 * 6)
    text = [token for token in ids.tolist() if token != tokens.token_id]
    assert [token for token in prompt if token != tokens.token_id] == text


def test_positions_of_rows_of_one_length_are_those_of_the_tokens():
    import torch
    from tensordict import TensorDict

    from ajet_verl.trainer.workers import fix_position_ids

    for lengths in ([6, 6, 6], [5, 6, 9], [16, 16, 16, 16]):
        rows = [torch.arange(4 * length).reshape(4, length) + 100 * at for at, length in enumerate(lengths)]
        queued = torch.nested.as_nested_tensor(rows, layout=torch.jagged)  # as TransferQueue packs them
        queued._ragged_idx = 1 if len(set(lengths)) == 1 else 2
        found = fix_position_ids(TensorDict({"position_ids": queued}, batch_size=[len(rows)]))["position_ids"]
        assert all(torch.equal(one, other) for one, other in zip(found.unbind(), rows, strict=True)), lengths
        assert found.offsets().diff().tolist() == lengths, "ragged along their tokens, where verl cuts them"


def test_the_processors_that_verl_knows():
    from verl.utils.tokenizer import hf_processor

    from ajet_verl.train import KNOWN

    assert re.findall(r'case "(\w+)Processor"', inspect.getsource(hf_processor)) == list(KNOWN)


def test_servers_begin_with_the_models_own_weights_where_it_sees_images():
    for sees, expected in ((True, "auto"), (False, "dummy")):
        tree = compose_verl_config(experiment(), model=ModelLimits(images=sees))
        assert tree["actor_rollout_ref"]["rollout"]["load_format"] == expected


def test_a_row_brings_the_pictures_of_its_timeline():
    from ajet_ray.rows import build_rows

    renderer = seeing_renderer()
    episode = played(renderer, [question(URL, "one"), question(data_url(square("red")), "two")])
    (line,) = episode.timelines
    for length, sizes in ((line.ids.size, [(28, 42), (56, 56)]), (line.spans[0].stop + 9, [(28, 42)])):
        episode.timelines[:], _ = cut_over_length([line], length)
        (row,) = build_rows(episode, group_order=0)
        pictures = row["multi_modal_data"]["images"]
        assert [each.size for each in pictures] == sizes
        ids = np.array([*row["prompt_ids"], *row["response_ids"]])
        assert (ids == renderer.images.token_id).sum() == sum(wide * high // 196 for wide, high in sizes)


@pytest.mark.parametrize("kind", ["glm4v", "qwen2_vl"])
def test_verl_embeds_rows_without_images(kind):
    import torch
    from transformers import AutoModel, Glm4vConfig, Qwen2VLConfig
    from verl.models.transformers import glm4v, qwen2_vl

    from ajet_verl.trainer.workers import return_image_features

    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "rope_parameters": {"mrope_section": [1, 1, 2]}}
    text = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 64, **heads}
    vision = {"depth": 1, "hidden_size": 16, "out_hidden_size": 16, "num_heads": 2, "embed_dim": 16}
    config, forward = {"glm4v": (Glm4vConfig, glm4v), "qwen2_vl": (Qwen2VLConfig, qwen2_vl)}[kind]
    model = AutoModel.from_config(config(text_config=text, vision_config=vision))
    return_image_features(model)
    ids = torch.arange(6).reshape(2, 3)
    embeddings, _ = forward._get_input_embeds(model, ids)
    assert torch.equal(embeddings, model.get_input_embeddings()(ids))
