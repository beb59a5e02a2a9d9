"""Memory and time on GPUs by formula, against numbers that were computed by hand for Qwen2.5-7B on 8 H100."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ajet.commands.gpu_estimate import GPUS, describe_estimate, estimate_memory, estimate_seconds
from ajet.config import AjetConfig
from ajet.engine.dimensions import ModelSize, parse_size, read_dimensions

QWEN = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
PARAMETERS = 7_615_487_488
"""28 × (2 × 3584² + 2 × 512 × 3584 + 3 × 18944 × 3584) + 2 × 152064 × 3584 + 57 × 3584; without biases."""


def settings(**trainer: Any) -> AjetConfig:
    chosen = {"gradient_checkpointing": True, "micro_batch_tokens": 4096, "nnodes": 1, "n_gpus_per_node": 8, **trainer}
    return AjetConfig.model_validate(
        {
            "backbone": "verl",
            "data": {"train_batch_size": 64, "max_prompt_length": 1024, "max_response_length": 1024},
            "rollout": {"num_repeat": 8, "max_model_len": 2048, "max_num_seqs": 10, "gpu_memory_utilization": 0.5},
            "trainer_common": chosen,
        }
    )


def qwen(folder: Path) -> ModelSize:
    (folder / "config.json").write_text(json.dumps(QWEN))
    found = read_dimensions(folder)
    assert found is not None
    return found.size()


def test_memory_of_a_gpu_is_the_sum_computed_by_hand(tmp_path: Path) -> None:
    size = qwen(tmp_path)
    assert size.parameters == PARAMETERS
    held = estimate_memory(size, settings(), GPUS["H100"])
    assert held.weights == held.gradients == 3_807_743_744  # 4 P / 8
    assert held.optimizer == 7_615_487_488  # 8 P / 8
    assert held.reference == 0, "offloaded to main memory by default"
    assert held.gathered == 1_087_926_784  # 2 layers × 2 bytes × P / 28
    assert held.activations == 4096 * (2 * (7 * 3584 + 2 * 512 + 5 * 18944) + 8 * 3584 + 2 * 3584 * 28) == 1_929_379_840
    assert held.logits == 3_737_124_864  # 4096 × 152064 × 6
    assert held.update == 23_059_148_288
    assert held.engine_weights == 2 * PARAMETERS and held.cache == 24_769_025_024  # 0.5 × 80e9 − 2 P
    assert held.cache_tokens == 431_937  # of 2 × 2 × 512 × 28 bytes


def test_time_of_a_step_is_the_quotient_computed_by_hand(tmp_path: Path) -> None:
    sampling, update = estimate_seconds(qwen(tmp_path), settings(), GPUS["H100"], compute=0.5, bandwidth=0.8)
    # 6 passes × (2 P + 2 × 28 × 3584 × 2048) × 1,048,576 tokens / (8 × 494.5e12)
    assert update == pytest.approx(24.88, abs=0.01)
    # 7 waves of 10 rows: 1024 × 6.0119 ms, and a prefill of 0.3154 s
    assert sampling == pytest.approx(45.30, abs=0.01)


@pytest.mark.parametrize(
    ("trainer", "field", "expected"),
    [
        ({"nnodes": 2}, "optimizer", PARAMETERS / 2),
        ({"fsdp_config": {"param_offload": False}}, "reference", PARAMETERS / 2),
        ({"fsdp_config": {"param_offload": False}, "use_kl_loss": False}, "reference", 0),
        ({"fsdp_config": {"param_offload": False}}, "resident", PARAMETERS),
        ({"lora": {"rank": 8}}, "gradients", 4 * 8 * 28 * (2 * 7168 + 2 * 4096 + 3 * 22528) / 8),
        ({"gradient_checkpointing": False}, "activations", 4096 * 270_336 * 28),
        ({"ulysses_sequence_parallel_size": 2, "micro_batch_tokens": 100}, "logits", 6 * 152064 * 1024),
    ],
)
def test_settings_change_their_part(tmp_path: Path, trainer: dict[str, Any], field: str, expected: float) -> None:
    assert getattr(estimate_memory(qwen(tmp_path), settings(**trainer), GPUS["H100"]), field) == expected


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7e9),
        ("Qwen/Qwen2.5-0.5B", 0.5e9),
        ("meta-llama/Llama-3.1-70B-Instruct", 70e9),
        ("mistralai/Mixtral-8x7B-v0.1", 56e9),
        ("HuggingFaceTB/SmolLM2-135M", 135e6),
        ("google/gemma-2-2b-it", 2e9),
        ("Qwen/Qwen3-30B-A3B", 30e9),
        ("openai-community/gpt2", None),
        ("org7B/model", None),
    ],
)
def test_a_size_is_read_from_a_name(name: str, parameters: float | None) -> None:
    found = parse_size(name)
    assert (found.parameters if found is not None else None) == parameters


def test_an_unknown_architecture_leaves_out_what_follows_from_it() -> None:
    size = parse_size("Qwen2.5-7B-Instruct")
    assert size is not None
    held = estimate_memory(size, settings(), GPUS["H100"])
    assert held.activations == held.logits == held.gathered == held.cache_tokens == 0
    assert held.weights == 4 * 7e9 / 8 and held.engine_weights == 14e9
    assert all(seconds > 0 for seconds in estimate_seconds(size, settings(), GPUS["H100"], compute=1, bandwidth=1))


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    rows = dict(describe_estimate(qwen(tmp_path), settings(n_gpus_per_node=1), "4090"))
    assert "22.4 GiB are there" in rows["memory"] and "not measured" in rows["memory"]
    assert rows["memory"].endswith("weights"), "half of a 4090 is less than vLLM's weights"
    assert "docs/sizes.md" in rows["time"]
