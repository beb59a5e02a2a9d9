"""What the trainer saves: every bit comes back, other libraries load it, adapters are merged without loss."""

from __future__ import annotations

import resource
import signal

import numpy as np
import pytest
import torch

from ajet.backbone.local.trainer import Trainer
from ajet.schema.batch import TrainingBatch
from ajet.schema.errors import UserError
from tests.support.local_fixtures import (
    config_of,
    plain_logprobs,
    random_samples,
    tiny_llama,
    tiny_qwen3,
    weights_of,
)  # fmt: skip

pytestmark = pytest.mark.slow
OTHERS = pytest.mark.extra_slow  # four seconds each: one with adapters in bfloat16, one with neither, stand for them


@pytest.mark.parametrize(
    ("dtype", "rank"),
    [
        (torch.float32, 0),
        (torch.bfloat16, 4),
        pytest.param(torch.float32, 4, marks=OTHERS),
        pytest.param(torch.bfloat16, 0, marks=OTHERS),
    ],
)
def test_a_checkpoint_restores_every_bit(tmp_path, dtype, rank):
    """Two steps, save, one more; and from the checkpoint the same one more."""
    config = config_of(optim__lr=0.01, lora__rank=rank)
    trainer = Trainer(tiny_qwen3(dtype=dtype), config)
    for step in (1, 2):
        trainer.update(TrainingBatch(step, random_samples(step)))
    torch.rand(3)
    trainer.save(tmp_path, None)
    rng = torch.rand(3)
    last = trainer.update(TrainingBatch(3, random_samples(3)))

    other = Trainer(tiny_qwen3(dtype=dtype), config)
    other.load(tmp_path)
    assert other.version == 2 and torch.equal(torch.rand(3), rng)
    again = other.update(TrainingBatch(3, random_samples(3)))
    assert torch.equal(weights_of(other), weights_of(trainer))
    assert torch.equal(other.optimizer.second, trainer.optimizer.second)
    assert {**last, "seconds/train": 0} == {**again, "seconds/train": 0}


@pytest.mark.parametrize("make", [tiny_qwen3, tiny_llama])
@pytest.mark.parametrize("rank", [0, 4])
def test_transformers_loads_what_was_saved(tmp_path, make, rank):
    from transformers import AutoModelForCausalLM

    trainer = Trainer(make(), config_of(optim__lr=0.01, lora__rank=rank))
    samples = random_samples()
    trainer.update(TrainingBatch(1, samples))
    trainer.save(tmp_path, None)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert model.config._attn_implementation == "sdpa" and model.dtype == torch.float32
    for sample, mine in zip(samples, trainer.logprobs(samples), strict=True):
        with torch.no_grad():
            theirs = plain_logprobs(model, sample).numpy()
        np.testing.assert_allclose(mine[sample.timeline.mask], theirs, atol=1e-4)


def test_lora_trains_adapters_only_and_the_reference_is_the_base(tmp_path):
    samples = random_samples()
    base = Trainer(tiny_qwen3(), config_of()).logprobs(samples)
    trainer = Trainer(tiny_qwen3(), config_of(lora__rank=4, optim__lr=0.05, use_kl_loss=True))
    assert trainer.policy.weights.size < 20_000
    assert all(".lora_" in place.name for place in trainer.policy.weights.places)
    np.testing.assert_allclose(np.concatenate(trainer.logprobs(samples)), np.concatenate(base), atol=1e-5)
    for step in (1, 2):
        trainer.update(TrainingBatch(step, samples))
    assert np.abs(np.concatenate(trainer.logprobs(samples)) - np.concatenate(base)).max() > 0.01
    np.testing.assert_allclose(
        np.concatenate(trainer.logprobs(samples, reference=True)), np.concatenate(base), atol=1e-5
    )
    trainer.save(tmp_path, None)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


def test_peft_loads_the_adapters(tmp_path):
    from peft import PeftModel

    trainer = Trainer(tiny_llama(), config_of(lora__rank=2, optim__lr=0.05))
    samples = random_samples()
    trainer.update(TrainingBatch(1, samples))
    trainer.save(tmp_path, None)
    model = PeftModel.from_pretrained(tiny_llama(), tmp_path / "adapter")
    with torch.no_grad():
        theirs = plain_logprobs(model, samples[0]).numpy()
    np.testing.assert_allclose(trainer.logprobs(samples)[0][samples[0].timeline.mask], theirs, atol=1e-4)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    Trainer(tiny_qwen3(), config_of()).save(tmp_path, None)
    with pytest.raises(UserError, match="another model"):
        Trainer(tiny_qwen3(layers=1), config_of()).load(tmp_path)
    with pytest.raises(UserError, match="no trainer state"):
        Trainer(tiny_qwen3(), config_of()).load(tmp_path / "adapter")


@pytest.mark.parametrize("limit", [10_000, 60_000, 100_000])
def test_a_disk_that_fills_is_an_error_that_says_so(tmp_path, limit):
    """A limit on file sizes stands for the disk: it is met in the model's file or in the trainer's state."""
    from ajet.record.files import is_full

    trainer = Trainer(tiny_qwen3(), config_of())
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(Exception, match="(?i)too large") as raised:
            trainer.save(tmp_path, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert is_full(raised.value, tmp_path)
    assert trainer.update(TrainingBatch(1, random_samples()))["steps_skipped"] == 0, "training can go on"


@pytest.mark.parametrize("lr", [1e-5, pytest.param(1e-4, marks=OTHERS)])
def test_merged_adapters_keep_small_updates(tmp_path, lr):
    """In bfloat16, after three steps: the merged weights have moved as far in the update's direction as it went."""
    from safetensors.torch import load_file

    trainer = Trainer(tiny_qwen3(dtype=torch.bfloat16, layers=4), config_of(optim__lr=lr, lora__rank=4))
    for step in range(3):
        trainer.update(TrainingBatch(1, random_samples(step)))
    trainer.save(tmp_path, None)
    merged = load_file(tmp_path / "model.safetensors")
    start = dict(tiny_qwen3(dtype=torch.bfloat16, layers=4).named_parameters())
    kept = true = 0.0
    for name, module in trainer.policy.adapted.get_base_model().named_modules():
        if hasattr(module, "lora_A"):
            update = module.get_delta_weight("default").float()
            kept += float(
                ((merged[f"{name}.weight"].float() - start[f"{name}.weight"].detach().float()) * update).sum()
            )
            true += float((update * update).sum())
    assert true > 0 and kept / true == pytest.approx(1, abs=0.25), kept / true
    again = {name: tensor.clone() for name, tensor in trainer.policy.changed()}
    assert all(torch.equal(tensor, merged[name]) for name, tensor in again.items()), "the same bits each time"
