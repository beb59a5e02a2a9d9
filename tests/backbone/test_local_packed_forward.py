"""A packed row through the model equals the model's own forward pass over each sample alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ajet.backbone.local import packed_forward, tree_attention
from ajet.backbone.local.lora import add_adapters, merged_state, save_adapters
from ajet.backbone.local.packed_forward import PackedForward, token_logprobs
from ajet.config.schema.trainer_common import AdapterConfig, LoraConfig
from ajet.context_tracker.packing import pack
from ajet.engine.same_model import logits_match
from ajet.schema.errors import ConfigError
from tests.support.local_fixtures import plain_logprobs, random_samples, sample_of, tiny_llama, tiny_qwen3

pytestmark = pytest.mark.slow

MODELS = {
    "qwen3": tiny_qwen3,
    "llama": tiny_llama,
    "sliding window": lambda: tiny_qwen3(
        sliding_window=3, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"]
    ),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.fixture(params=["dense", "by subtree", "by segment", "computed again"])
def attention(request, monkeypatch):
    """All ways of attending: the third, a GPU's, in blocks of two queries, the fourth with nothing of them kept."""
    if request.param != "dense":
        monkeypatch.setattr(tree_attention, "DENSE", 0)
        monkeypatch.setattr(tree_attention, "QUERY_BLOCK", 2)
    if request.param in ("by segment", "computed again"):
        monkeypatch.setattr(tree_attention, "uses_subtrees", lambda *given: False)
    if request.param == "computed again":
        monkeypatch.setattr(tree_attention, "KEPT", 0)


def packed_logprobs(forward, samples, rows, temperature=1.0):
    found = [np.zeros(sample.timeline.ids.size, np.float32) for sample in samples]
    for row in rows:
        values = forward.logprobs(row, temperature).numpy()
        for value, sample, offset in zip(values, row.targets.sample, row.targets.offset, strict=True):
            found[sample][offset] = value
    return [values[sample.timeline.mask] for values, sample in zip(found, samples, strict=True)]


def test_logprobs(model, attention):
    samples = random_samples()
    with torch.no_grad():
        wanted = [plain_logprobs(model, sample, 0.7) for sample in samples]
    forward = PackedForward(model)
    assert forward.packed
    rows = pack(samples, 4096)
    assert sum(row.ids.size for row in rows) < sum(sample.timeline.ids.size for sample in samples)
    for have, want in zip(packed_logprobs(forward, samples, rows, 0.7), wanted, strict=True):
        np.testing.assert_allclose(have, want.numpy(), atol=2e-5)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients(model, attention, monkeypatch, checkpointing):
    monkeypatch.setattr(packed_forward, "CHUNK_BYTES", 4 * 97 * 5)
    samples = random_samples()
    loss = sum((plain_logprobs(model, sample) * (1 + index)).sum() for index, sample in enumerate(samples))
    loss.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    forward = PackedForward(model)
    total = 0.0
    for row in pack(samples, 24):
        scale = torch.from_numpy(1.0 + row.targets.sample).float()
        total += forward.backward(row, 1.0, lambda lp, entropy, at, scale=scale: (lp * scale[at]).sum())
    assert total == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in model.named_parameters():
        largest = wanted[name].abs().max()
        assert (parameter.grad - wanted[name]).abs().max() <= 1e-5 * largest + 1e-6, name


def test_a_head_with_an_adapter_is_read_in_chunks_as_the_whole(monkeypatch):
    """In float64, but for the table of log-probabilities, whose rows are the same however many there are."""
    pytest.importorskip("peft")
    model = tiny_qwen3(dtype=torch.float64, tie_word_embeddings=False)
    lora = LoraConfig(rank=2, target_modules=["q_proj", "lm_head"])
    add_adapters(model, lora)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for parameter in trained.values():
            parameter.normal_(0, 0.1)
    forward = PackedForward(model)
    (row,) = pack(random_samples(), 4096)
    found = []
    for size in (1 << 30, 4 * 97 * 5):
        monkeypatch.setattr(packed_forward, "CHUNK_BYTES", size)
        model.zero_grad()
        forward.backward(row, 0.7, lambda lp, entropy, at: (lp * torch.arange(at.start, at.stop)).sum())
        found.append({name: parameter.grad.clone() for name, parameter in trained.items()})
    assert any("lm_head" in name for name in trained) and len(forward.split_targets(row)) > 3
    for name, whole in found[0].items():
        assert whole.abs().max() > 0
        torch.testing.assert_close(found[1][name], whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("tied", "lora", "says"),
    [
        (True, LoraConfig(rank=2, target_modules=["lm_head"]), "share their weights, so an adapter on the head alone"),
        (True, LoraConfig(rank=2, target_modules=["q_proj", "embed_tokens"]), "an adapter on the embedding alone"),
        (
            False,
            LoraConfig(target_modules=["lm_head"], adapters={"a": AdapterConfig(rank=2)}),
            "does not see every token of a batch",
        ),
        (True, LoraConfig(rank=2), ""),
        (False, LoraConfig(rank=2, target_modules=["lm_head", "embed_tokens"]), ""),
    ],
)
def test_an_adapter_that_no_sampler_could_follow_is_refused_by_name(tied, lora, says):
    pytest.importorskip("peft")
    model = tiny_qwen3(layers=1, tie_word_embeddings=tied)
    if not says:
        adapted, ids = add_adapters(model, lora), torch.arange(9)[None]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(0, 0.1) if ".lora_" in name else None
            merged = tiny_qwen3(layers=1, tie_word_embeddings=tied, seed=1)
            merged.load_state_dict(merged_state(adapted), strict=not tied)
            torch.testing.assert_close(merged(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)
        return
    with pytest.raises(ConfigError, match=says) as error:
        add_adapters(model, lora)
    assert error.value.where == "ajet.trainer_common.lora.target_modules"


def kept(model, length):
    """What the forward pass over a tree keeps for the backward pass, each storage once: its bytes, and a tensor in it.
    The longer branch is half of the longest path."""
    draw = np.random.default_rng(length)
    half = length // 2
    prompt = draw.integers(0, 97, half).tolist()
    samples = [sample_of(prompt + draw.integers(0, 97, end).tolist(), [(half, half + end)]) for end in (half, 40)]
    (row,) = pack(samples, 10**6)
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        PackedForward(model, packed=True).hidden(row)
    return list(found.values())


def test_blocks_that_are_alike_and_all_layers_share_a_windows_mask(monkeypatch):
    for knob, value in (("DENSE", 64), ("QUERY_BLOCK", 32), ("KEPT", 128)):
        monkeypatch.setattr(tree_attention, knob, value)
    model = MODELS["sliding window"]()
    assert PackedForward(model).packed
    tensors = [tensor for _, tensor in kept(model, 2048)]
    assert 1 <= sum(bool(torch.isneginf(tensor).any()) for tensor in tensors) < 8, "of 65 blocks in each layer"


@pytest.mark.parametrize(
    ("name", "way"), [("qwen3", "by subtree"), ("qwen3", "by segment"), ("sliding window", "by segment")]
)
def test_memory_is_linear_in_the_longest_path(name, way, monkeypatch):
    """A mask of queries by keys, kept in each block, would make it four times as much for twice the length; the
    window of the third is far below both."""
    if way == "by segment":
        monkeypatch.setattr(tree_attention, "uses_subtrees", lambda *given: False)
    for knob, value in (("DENSE", 64), ("QUERY_BLOCK", 32), ("KEPT", 128)):
        monkeypatch.setattr(tree_attention, knob, value)
    model = MODELS[name]()
    assert PackedForward(model).packed
    small, large = (sum(size for size, _ in kept(model, length)) for length in (1024, 2048))
    assert large < 2.1 * small


def test_row_borders_change_nothing():
    """The same samples in one row, in many, and without sharing."""
    model, samples = tiny_qwen3(), random_samples(3)
    forward = PackedForward(model)
    found = [
        np.concatenate(packed_logprobs(forward, samples, pack(samples, budget, share_prefixes=share)))
        for budget, share in ((4096, True), (20, True), (4096, False))
    ]
    np.testing.assert_allclose(found[0], found[1], atol=2e-5)
    np.testing.assert_allclose(found[0], found[2], atol=2e-5)


def test_a_model_that_ignores_trees_gets_one_sample_at_a_time(monkeypatch):
    """Recurrent or convolutional layers carry state along a row; here, attention that sees everything before."""
    model, samples = tiny_qwen3(), random_samples()
    with torch.no_grad():
        wanted = torch.cat([plain_logprobs(model, sample) for sample in samples])

    def careless(module, query, key, value, mask, *, trees, scaling=None, **other):
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2).contiguous(), None

    monkeypatch.setattr(tree_attention, "tree_attention", careless)
    try:
        forward = PackedForward(model)
    finally:
        monkeypatch.undo()
        tree_attention.register_attention()
    assert not forward.packed
    found = packed_logprobs(forward, samples, pack(samples, 4096, share_prefixes=False))
    np.testing.assert_allclose(np.concatenate(found), wanted.numpy(), atol=2e-5)


def test_logits_that_are_not_the_heads_are_refused(monkeypatch):
    model = tiny_qwen3()
    plain = type(model).forward

    def altered(self, *args, **kwargs):
        out = plain(self, *args, **kwargs)
        out.logits = out.logits.flip(-1)
        return out

    monkeypatch.setattr(type(model), "forward", altered)
    with pytest.raises(ConfigError, match="logits"):
        PackedForward(model)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_token_logprobs(temperature):
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 11, generator=draw, requires_grad=True)
    targets = torch.tensor([0, 3, 10, 3, 7])
    wanted = torch.log_softmax(logits / temperature, -1)
    chosen = wanted.gather(1, targets[:, None]).squeeze(1)
    weights = torch.arange(1.0, 6.0)
    (gradient,) = torch.autograd.grad((chosen * weights).sum(), logits)
    found, entropy = token_logprobs(logits, targets, temperature)
    torch.testing.assert_close(found, chosen)
    torch.testing.assert_close(entropy, -(wanted.exp() * wanted).sum(-1))
    (mine,) = torch.autograd.grad((found * weights).sum(), logits)
    torch.testing.assert_close(mine, gradient)
    assert not entropy.requires_grad


def test_no_more_logits_than_a_chunk_exist(monkeypatch):
    monkeypatch.setattr(packed_forward, "CHUNK_BYTES", 4 * 97 * 3)
    forward = PackedForward(tiny_qwen3())
    sizes = []
    plain = forward.logits
    monkeypatch.setattr(forward, "logits", lambda hidden: sizes.append(hidden.shape[0]) or plain(hidden))
    [row] = pack([sample_of(range(40), [(10, 40)])], 4096)
    forward.logprobs(row, 1.0)
    assert sum(sizes) == 30 and max(sizes) <= 3


def test_a_rank_that_has_no_token_to_hold_agrees():
    """Ulysses over sixteen ranks: the last part of verl's probe is padding alone."""
    none = torch.zeros(0, 97)
    assert logits_match(none, none, torch.float32) and logits_match(none, none, torch.bfloat16)


def test_saved_adapters_name_their_modules_in_order(tmp_path):
    """Else `adapter_config.json` has other bytes in each process."""
    pytest.importorskip("peft")
    model = add_adapters(tiny_qwen3(layers=1), LoraConfig(rank=2))
    save_adapters(model, tmp_path)
    modules = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert len(modules) > 3 and modules == sorted(modules)
