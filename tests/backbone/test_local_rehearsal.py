"""A rehearsed update leaves no trace, and says what it took or that it does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ajet.backbone.local.backbone import make_sample, run_rehearsal
from ajet.backbone.local.trainer import Trainer
from ajet.schema.batch import TrainingBatch
from ajet.schema.errors import UserError
from tests.support.local_fixtures import VOCABULARY, config_of, random_samples, tiny_qwen3, weights_of

CPU = torch.device("cpu")


def trained(*, rehearse: bool, dtype: torch.dtype, **settings: Any) -> tuple[torch.Tensor, dict[str, float], Any]:
    """Weights, metrics and random state after two updates."""
    trainer = Trainer(tiny_qwen3(dtype=dtype), config_of(optim__lr=1e-3, **settings))
    torch.manual_seed(5)
    if rehearse:
        done = run_rehearsal(trainer, [40, 40], CPU)
        assert done.seconds > 0 and done.peak > 1 << 20
        assert trainer.policy.weights.gradients is None and trainer.version == trainer.optimizer.steps == 0
    numbers: dict[str, float] = {}
    for step in (1, 2):
        numbers = trainer.update(TrainingBatch(step=step, samples=random_samples(step), temperature=1.0))
    return weights_of(trainer), numbers, torch.rand(3)


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        pytest.param(torch.float32, {}, marks=pytest.mark.extra_slow),
        (torch.bfloat16, {"mini_batch_num": 2}),
        pytest.param(
            torch.float32, {"use_kl_loss": True, "gradient_checkpointing": True}, marks=pytest.mark.extra_slow
        ),
        pytest.param(torch.float32, {"lora__rank": 2}, marks=pytest.mark.extra_slow),
    ],
)
def test_a_run_is_the_same_bit_for_bit_with_and_without(dtype: torch.dtype, settings: dict[str, Any]) -> None:
    with_one = trained(rehearse=True, dtype=dtype, **settings)
    without = trained(rehearse=False, dtype=dtype, **settings)
    assert torch.equal(with_one[0], without[0]) and torch.equal(with_one[2], without[2])
    for numbers in (with_one[1], without[1]):
        numbers.pop("seconds/train")
    assert with_one[1] == without[1]


def test_all_tokens_but_the_first_are_trained() -> None:
    sample = make_sample(9, VOCABULARY, 3)
    assert sample.timeline.mask.sum() == 8 and sample.timeline.ids.max() < VOCABULARY
    assert np.array_equal(sample.timeline.ids, make_sample(9, VOCABULARY, 3).timeline.ids)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("[enforce] not enough memory: 9 bytes")]
)
def test_a_lack_of_memory_is_one_screen(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    trainer = Trainer(tiny_qwen3(), config_of())

    def lacks(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(trainer.policy.forward, "backward", lacks)
    before = weights_of(trainer)
    with pytest.raises(UserError, match="a pass over 20 tokens") as said:
        run_rehearsal(trainer, [10, 10], CPU)
    assert "--no-rehearsal" in (said.value.do or "") and "micro_batch_tokens" in (said.value.do or "")
    assert torch.equal(weights_of(trainer), before) and trainer.policy.weights.gradients is None
    error.args = ("another mistake",)
    if isinstance(error, torch.OutOfMemoryError):
        return
    with pytest.raises(RuntimeError, match="another mistake"):
        run_rehearsal(trainer, [10, 10], CPU)
