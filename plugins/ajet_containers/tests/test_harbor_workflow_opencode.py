"""Training on Harbor tasks with OpenCode: one YAML, one command, its whole prompt in the model's context."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ajet.record import EpisodeFiles
from ajet_containers.tests.harbor_tasks import copy_libraries, list_containers, write_task
from ajet_harness.install import find_installed
from tests.support.ajet_process import ajet, metric_rows
from tests.support.sandbox_fixtures import require

pytestmark = pytest.mark.extra_slow
VERIFIER = "python3 -c 'import time; print(time.time() % 1)' > /logs/verifier/reward.txt"
"""Rewards nothing: an untrained model's attempts need different rewards, or no step would be trained."""
CONTEXT = 12288


def make_model(folder: Path) -> None:
    """Make random weights with SmolLM2's vocabulary, the chat template of `tiny-tools`, and room for the prompt."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from ajet.engine.model_source import locate_model
    from ajet.engine.models import prepare_folder

    words, template = (
        AutoTokenizer.from_pretrained(prepare_folder(locate_model(f"embedded:{name}", base=folder)))
        for name in ("smollm2-135m", "tiny-tools")
    )
    words.chat_template, words.model_max_length = template.chat_template, CONTEXT
    words.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=128,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id or words.eos_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def test_a_harbor_folder_trains_with_opencode(tmp_path: Path) -> None:
    require("podman")
    if find_installed("opencode") is None:
        pytest.skip("opencode is not installed: `python -m tests.contract.npm_packages --slow` does")
    for name in ("one", "two"):
        task = write_task(tmp_path / "tasks" / name, verifier=VERIFIER, dockerfile="COPY lib /usr/lib")
        copy_libraries(task / "environment" / "lib")
    make_model(tmp_path / "model")
    rollout = {"user_workflow": "harbor", "num_repeat": 2, "max_env_worker": 2, "temperature": 1.0}
    lengths = {"max_response_length_in_one_turn": 24, "max_model_len": CONTEXT}
    settings = {
        "project_name": "repairs",
        "experiment_name": "repairs",
        "model": {"path": "model"},
        "task_reader": {"type": "harbor", "harbor": {"path": "tasks"}},
        "rollout": {**rollout, **lengths, "compute_madness_checklist": []},
        "data": {"train_batch_size": 2, "max_prompt_length": 11000, "max_response_length": 1000},
        "trainer_common": {"total_training_steps": 1, "test_freq": -1, "threads": 1},
    }
    sections = {"command_agent": {"harness": "opencode"}, "container": {"memory_mb": 2048}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({"ajet": settings, **sections}))
    done = ajet("--conf", "x.yaml", "--backbone", "local", cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout
    run = tmp_path / "launcher_record" / "repairs"
    (row,) = (row for row in metric_rows(run) if "tasks" in row)
    episodes = EpisodeFiles(run / "episodes").read(1)
    assert row["train/episodes"] == len(episodes) == 4 and row["grad_norm"] > 0
    assert row["proof/tokens"] > 0 and row["proof/wrong_tokens"] == 0
    assert all(episode.reward is not None for episode in episodes)
    assert list_containers() == []
