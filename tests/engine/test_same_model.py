"""Engine, trainer and transformers' eager pass compute the same model; what they cannot compute they refuse."""

from __future__ import annotations

import asyncio
import copy
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from ajet.backbone.local import packed_forward, tree_attention
from ajet.backbone.local.packed_forward import PackedForward
from ajet.backbone.local.policy import LocalPolicy
from ajet.config.schema.trainer_common import LoraConfig
from ajet.context_tracker.packing import pack
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.model_source import locate_model
from ajet.engine.models import freeze_rope, load_model
from ajet.engine.transformers import TransformersEngine, isolated_decoding
from ajet.engine.transformers import attention as rows_attention
from ajet.schema.errors import UserError
from tests.support.local_fixtures import plain_logprobs, sample_of, tiny_qwen3
from tests.support.tiny_models import tiny

pytestmark = pytest.mark.slow

SAMPLED = [
    "Llama, dynamic rope",
    "Gemma 2",
    "Gemma 3",
    "gpt-oss",
    "Phi 3.5, 4 mini, longrope",
    "Qwen 3, mixture of experts",
    "StableLM",
    "AFMoE",
]


def samples_of(lengths: tuple[int, ...] = (9, 14, 60, 30)) -> list[Any]:
    """Two that share a prefix, and two by themselves; some shorter than windows and borders, some longer."""
    draw = np.random.default_rng(1)
    ids = [draw.integers(3, 97, length).tolist() for length in lengths]
    ids[1][:6] = ids[0][:6]
    return [sample_of(each, [(6, len(each))], group=int(k > 1), episode=str(k)) for k, each in enumerate(ids)]


def trainers(model: Any, samples: list[Any], budget: int = 4096) -> list[Any]:
    forward = PackedForward(model)
    found = [np.zeros(sample.timeline.ids.size, np.float32) for sample in samples]
    for row in pack(samples, budget, share_prefixes=forward.packed):
        for value, sample, at in zip(
            forward.logprobs(row, 1.0).numpy(), row.targets.sample, row.targets.offset, strict=True
        ):
            found[sample][at] = value
    return [values[sample.timeline.mask] for values, sample in zip(found, samples, strict=True)]


def engines(engine: TransformersEngine, prompts: list[Any]) -> list[tuple[list[int], list[float]]]:
    async def reply(ids: Any, repeat: int) -> tuple[list[int], list[float]]:
        request = TokenRequest(np.asarray(ids, np.int32), Sampling(24), DrawKey(1, 2, repeat, 0))
        chunks = [chunk async for chunk in engine.generate(request)]
        return sum((c.ids for c in chunks), []), sum((c.logprobs_unit for c in chunks), [])

    async def together() -> Any:
        return await asyncio.gather(*(reply(ids, k) for k, ids in enumerate(prompts)))

    return asyncio.run(together())


@pytest.mark.parametrize("family", SAMPLED)
def test_the_same_logprobs_and_gradients(family):
    model = tiny(family)
    freeze_rope(model, 512)
    engine = TransformersEngine(copy.deepcopy(model))
    prompts = [sample.timeline.ids[:6].tolist() for sample in samples_of()[1:]] + [list(range(3, 43))]
    replies = engines(engine, prompts)
    engine.close()
    sampled = [
        sample_of([*ids, *reply], [(len(ids), len(ids) + 24)], episode=str(k))
        for k, (ids, (reply, _)) in enumerate(zip(prompts, replies, strict=True))
    ]
    plain = copy.deepcopy(model)
    with torch.no_grad():
        wanted = [plain_logprobs(plain, sample).numpy() for sample in [*sampled, *samples_of()]]
    for (_, unit), want in zip(replies, wanted, strict=False):
        np.testing.assert_allclose(unit, want, atol=1e-3)
    found = trainers(model, [*sampled, *samples_of()])
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have, want, atol=1e-3)
    forward = PackedForward(model)
    for row in pack(samples_of(), 4096, share_prefixes=forward.packed):
        forward.backward(row, 1.0, lambda logprobs, entropy, at: logprobs.sum())
    sum(plain_logprobs(plain, sample).sum() for sample in samples_of()).backward()
    for (name, have), (_, want) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        if want.grad is not None:
            assert (have.grad - want.grad).abs().max() <= 1e-3 * want.grad.abs().max() + 1e-4, name


@pytest.mark.parametrize("block", [7, 256])
def test_scores_that_are_written_out_in_blocks(monkeypatch, block):
    monkeypatch.setattr(tree_attention, "WRITTEN_BLOCK", block)
    monkeypatch.setattr(tree_attention, "DENSE", 0)
    monkeypatch.setattr(tree_attention, "QUERY_BLOCK", 16)
    model = tiny("Gemma 2")
    with torch.no_grad():
        wanted = [plain_logprobs(model, sample).numpy() for sample in samples_of()]
    for have, want in zip(trainers(model, samples_of()), wanted, strict=True):
        np.testing.assert_allclose(have, want, atol=1e-3)


@pytest.mark.parametrize("keyword", [{"position_bias": torch.ones(1)}, {"is_causal": False}, {"brand_new": 1.5}])
def test_a_keyword_that_is_not_computed_raises(keyword):
    q = torch.ones(1, 2, 3, 8)
    for attention in (tree_attention.tree_attention, rows_attention.rows_attention):
        with pytest.raises(TypeError, match=next(iter(keyword))):
            attention(torch.nn.Identity(), q, q, q, None, **keyword)


@pytest.mark.parametrize("scale", [0.25, 0.5, 1.0])
def test_convolutions_are_never_packed(monkeypatch, scale):
    """They leak over the borders of a row; the numbers alone tell, also where weights are small."""
    monkeypatch.setattr(packed_forward, "explain_unseen_masks", lambda model, windows: "")
    model = tiny("LFM 2")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.ndim > 1 else 1)
        wanted = [plain_logprobs(model, sample).numpy() for sample in samples_of()]
    assert not PackedForward(model).packed
    for have, want in zip(trainers(model, samples_of()), wanted, strict=True):
        np.testing.assert_allclose(have, want, atol=1e-4)


def test_rope_of_short_and_long_samples_is_one():
    """`max_model_len` decides, below the border and above it; the configuration that is saved stays as it was."""
    for longest, by in ((16, "short_factor"), (17, "long_factor")):
        model = tiny("Phi 3.5, 4 mini, longrope")
        before = copy.deepcopy(model.config.to_dict())
        freeze_rope(model, longest)
        assert model.config.to_dict() == before
        model(input_ids=torch.arange(3, 43)[None], use_cache=False)
        model(input_ids=torch.arange(3, 13)[None], use_cache=False)
        plain = 1.0 / 10000.0 ** (torch.arange(0, 8, 2) / 8)
        factors = torch.tensor(model.config.rope_parameters[by])
        torch.testing.assert_close(model.model.rotary_emb.inv_freq, plain / factors)


def test_loading_freezes_rope_and_takes_what_has_no_fused_attention(tmp_path):
    """gpt-oss has no implementation but the eager one; Phi's factors follow max_model_len."""
    for family in ("gpt-oss", "Phi 3.5, 4 mini, longrope"):
        tiny(family).save_pretrained(tmp_path / family)
        model = load_model(locate_model(str(tmp_path / family)), dtype=torch.float32, max_model_len=64)
        kinds = [module.rope_type for module in model.modules() if hasattr(module, "rope_type")]
        assert "longrope" not in kinds
        assert PackedForward(model).packed


def test_an_engine_that_would_compute_another_model_refuses():
    for family, why in (("LFM 2", "conv"), ("Llama 4 (text)", "chunked"), ("Nemotron 4", "cannot replace")):
        with pytest.raises(UserError, match=why):
            TransformersEngine(tiny(family))


@pytest.mark.parametrize(("dtype", "bad", "refused"), [
    (torch.bfloat16, 1, False), (torch.bfloat16, isolated_decoding.DRAWS, True), (torch.float32, 1, True),
])  # fmt: skip
def test_rounding_that_one_draw_makes_large_refuses_no_model(monkeypatch, dtype, bad, refused):
    """A leak is in every draw; in float32 there is no rounding to speak of."""
    both, told = isolated_decoding.compute_both_logits, []

    def first_ones_differ(*given):
        found, plain = both(*given)
        told.append(given)
        return (found.flip(-1) if len(told) <= bad else found), plain

    monkeypatch.setattr(isolated_decoding, "compute_both_logits", first_ones_differ)
    with pytest.raises(UserError, match="keep a recurrent state") if refused else nullcontext():
        TransformersEngine(tiny_qwen3().to(dtype)).close()


def test_checkpointing_switches_on_no_dropout():
    """It needs training mode, in which attention calls dropout as a function, with a number of its own."""
    model = tiny_qwen3(attention_dropout=0.5)
    samples = samples_of()
    with torch.no_grad():
        wanted = np.concatenate([plain_logprobs(model, sample).numpy() for sample in samples])
    policy = LocalPolicy(model, lora=LoraConfig(), reference=False, gradient_checkpointing=True)
    assert policy.model.training
    policy.forward.packed = False
    policy.model.set_attn_implementation("eager")
    values = [policy.forward.logprobs(row, 1.0).numpy() for row in pack(samples, 4096, share_prefixes=False)]
    assert np.sort(np.concatenate(values)) == pytest.approx(np.sort(wanted), abs=1e-4)
