"""The same small run on verl row by row and with what rows share computed once: one curve, up to rounding.

One episode is played at a time, so that both runs' servers draw the same random numbers for the same tokens, as long
as their weights agree: a token would differ only where its random number lies within rounding of a border. Adam's `eps`
keeps it from making whole steps of the rounding of gradients that are next to nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.ajet_process import ajet, metric_rows
from tests.support.verl_runs import skip_without_verl

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]
STEPS, SAMPLES = 8, 8
CURVES = ("loss", "train/reward", "grad_norm", "kl")
WORKFLOW = '''
from ajet import Task, Workflow, WorkflowOutput

RULES = "You keep a stall at a market. " + " ".join(f"Rule {number}: be brief, name a price." for number in range(9))


class Questions:
    def __init__(self, config):
        pass

    def tasks(self, split):
        count = 64 if split == "train" else 1
        return [Task(task_id=str(number), main_query=f"What is fruit {number}?") for number in range(count)]


class TwoBranches(Workflow):
    """Asks, and asks again without what was said: two branches behind the prompt of the whole group."""

    async def execute(self, workflow_task, tuner):
        client, replies = tuner.as_raw_openai_sdk_client(), []
        begin = [{"role": "system", "content": RULES}, {"role": "user", "content": workflow_task.task.main_query}]
        for more in ([], [{"role": "user", "content": "In other words?"}]):
            answer = await client.chat.completions.create(model="tuned", messages=begin + more)
            replies.append(answer.choices[0].message.content or "")
        text = "".join(replies)
        return WorkflowOutput(reward=sum(sign.islower() for sign in text) / max(len(text), 1))
'''


def model_in(folder: Path) -> Path:
    """tiny-tools' shape with weights at random: it answers to the limit, and has everything to learn."""
    import shutil

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ajet.engine.embedded import shipped_folder

    shipped = shipped_folder("tiny-tools")
    assert shipped is not None
    shutil.copytree(shipped, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(shipped)).save_pretrained(folder)
    return folder


def trained(folder: Path, model: Path, trees: bool) -> tuple[list[dict], str]:
    """The metrics of each step, and what the run's processes said."""
    name = "trees" if trees else "rows"
    rollout = {
        "user_workflow": f"{folder / 'stall.py'}->TwoBranches", "num_repeat": SAMPLES, "temperature": 1.0,
        "max_response_length_in_one_turn": 16, "max_model_len": 640, "max_num_seqs": 16, "max_env_worker": 1,
        "compute_madness_checklist": [],
    }  # fmt: skip
    trainer = {
        "total_training_steps": STEPS, "test_freq": -1, "val_before_train": False, "save_freq": -1, "device": "cpu",
        "use_kl_loss": True, "optim": {"lr": 0.01, "eps": 0.001},
    }  # fmt: skip
    data = {"train_batch_size": 1, "max_prompt_length": 600, "max_response_length": 16, "shuffle": False}
    tree = {
        "project_name": "trees", "experiment_name": name, "model": {"path": str(model), "dtype": "float32"},
        "task_reader": {"type": f"{folder / 'stall.py'}->Questions"}, "rollout": rollout, "data": data,
        "trainer_common": trainer,
    }  # fmt: skip
    yaml = folder / f"{name}.yaml"
    yaml.write_text(json.dumps({"ajet": tree, "verl": {"actor_rollout_ref": {"ajet_trees": trees}}}))
    done = ajet("--conf", str(yaml), "--backbone", "verl", "--with-ray", cwd=folder, timeout=1500, fresh=True)
    assert done.returncode == 0, done.stdout
    run = folder / "launcher_record" / name
    return [row for row in metric_rows(run) if "tasks" in row], "".join(
        path.read_text() for path in (run / "logs").rglob("*") if path.is_file()
    )


def test_trees_have_the_curve_of_rows(tmp_path: Path) -> None:
    skip_without_verl()
    (tmp_path / "stall.py").write_text(WORKFLOW)
    model = model_in(tmp_path / "model")
    (rows, said_of_rows), (trees, said) = (trained(tmp_path, model, each) for each in (False, True))
    assert len(rows) == len(trees) == STEPS
    assert "shared prefixes of rows" in said and "shared prefixes" not in said_of_rows
    curves = {name: [(a[name], b[name]) for a, b in zip(rows, trees, strict=True)] for name in CURVES}
    for name, pairs in curves.items():
        assert [b for _, b in pairs] == pytest.approx([a for a, _ in pairs], rel=1e-5, abs=1e-6), (name, curves)
    rewards = [a for a, _ in curves["train/reward"]]
    assert max(rewards[-3:]) > rewards[0] + 0.05, curves
