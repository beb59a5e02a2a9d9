"""A workflow of several agents, an adapter for each: from the YAML to the record, a kill -9, the proof, and who serves
them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from ajet.config import load_experiment
from ajet.record import EpisodeFiles
from ajet.schema.errors import ConfigError
from ajet_deploy.deploy import DeployOptions, serve_model
from tests.support.ajet_process import ajet, metric_rows, start

KEY = "the-key-of-these-tests-0123456789"
ASK = [{"role": "user", "content": "What is 1 + 2?"}]
AGENT = '''
from ajet import Workflow, WorkflowOutput


class Pair(Workflow):
    """A solver answers, a critic looks at it; a judge that nobody trains has the last word."""

    trainable_targets: list[str] | None = ["solver", "critic"]

    async def execute(self, workflow_task, tuner):
        said = [{"role": "user", "content": workflow_task.task.main_query}]
        for name in ("solver", "critic-1", "judge"):
            client = tuner.as_raw_openai_sdk_client(agent_name=name, target_tag=name.split("-")[0])
            reply = await client.chat.completions.create(model="ajet", messages=said)
            said += [{"role": "assistant", "content": reply.choices[0].message.content},
                     {"role": "user", "content": f"And you, {name}?"}]
        return WorkflowOutput(reward=float(len(said[1]["content"]) - len(said[3]["content"])))
'''
TREE = {
    "model": {"path": "embedded:tiny-tools", "dtype": "float32"},
    "seed": 3,
    "task_reader": {"type": "random_dummy", "random_dummy": {"size": 6, "validation_size": 1}},
    "rollout": {
        "user_workflow": "agent.py->Pair", "num_repeat": 3, "temperature": 1.0, "max_response_length_in_one_turn": 6,
        "max_model_len": 256, "max_num_seqs": 8, "deterministic": True, "compute_madness_checklist": [],
    },
    "data": {"train_batch_size": 2, "max_prompt_length": 200, "max_response_length": 56},
    "lora": {"adapters": {"solver": {"lora_rank": 4}, "critic": {"lora_rank": 2, "lora_alpha": 4}}},
    "trainer_common": {
        "total_training_steps": 3, "save_freq": 1, "test_freq": 3, "device": "cpu", "threads": 1,
        "optim": {"lr": 0.01}, "use_kl_loss": True, "max_checkpoints_to_keep": 9,
    },
}  # fmt: skip


def project(folder: Path, **changes) -> Path:
    (folder / "agent.py").write_text(AGENT)
    (folder / "x.yaml").write_text(json.dumps({"ajet": TREE | changes}))
    return folder / "x.yaml"


def trained(folder: Path, name: str, *more: str):
    arguments = ["--conf", "x.yaml", "--backbone", "local", f"experiment_name={name}", *more]
    done = ajet(*arguments, cwd=folder)
    return done, folder / "launcher_record" / name


def served(run: Path, engine: str, monkeypatch) -> dict[str, list[float]]:
    """What each model of a deployment says, as its tokens' log-probabilities."""
    monkeypatch.setenv("AJET_API_KEY", KEY)
    bearer = {"authorization": f"Bearer {KEY}"}
    with serve_model(DeployOptions(run.name, run.parent, engine=engine)) as model:
        base, names = model.gateway.base_url, [*model.models]
        assert names == ["solver", "critic", "base"]
        assert [each["id"] for each in httpx.get(f"{base}/models", headers=bearer).json()["data"]] == names
        said = {}
        for name in (*names, "nobody"):
            body = {"model": name, "messages": ASK, "max_tokens": 6, "logprobs": True}
            said[name] = httpx.post(f"{base}/chat/completions", json=body, headers=bearer, timeout=300)
        other = said.pop("nobody")
        assert other.status_code == 404 and "solver, critic, base" in other.text
    told = {name: answer.json()["choices"][0]["logprobs"]["content"] for name, answer in said.items()}
    return {name: [each["logprob"] for each in tokens] for name, tokens in told.items()}


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["trainer_common.lora.adapters={default: {rank: 1}}"], "'default' is not a valid name"),
        (["trainer_common.lora.adapters={judge: {}}"], "The adapter judge has no rank"),
        (["trainer_common.mode=async"], "this run samples in other processes"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path, overrides, message):
    experiment = load_experiment(project(tmp_path), backbone="local", overrides=overrides, exp_dir=tmp_path / "runs")
    with pytest.raises(ConfigError, match=message):
        experiment.require_ready()


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_other_backbones_refuse_several_adapters(tmp_path, backbone):
    otherwise = TREE["rollout"] | {"deterministic": False}
    yaml = project(tmp_path, rollout=otherwise)
    experiment = load_experiment(yaml, backbone=backbone, exp_dir=tmp_path / "runs")
    with pytest.raises(ConfigError, match="cannot train several adapters") as refused:
        experiment.require_ready()
    assert "--backbone local" in str(refused.value)


@pytest.mark.extra_slow
def test_a_killed_run_goes_on_bit_for_bit_and_is_proven_and_served(tmp_path, monkeypatch):
    project(tmp_path)
    done, whole = trained(tmp_path, "whole")
    assert done.returncode == 0, done.stdout
    arguments = ["--conf", "x.yaml", "--backbone", "local", "experiment_name=killed"]
    process = start(*arguments, cwd=tmp_path, log=tmp_path / "log")
    killed = tmp_path / "launcher_record" / "killed"
    while not (killed / "checkpoints" / "step-1" / "state.json").exists():
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done, _ = trained(tmp_path, "killed")
    assert done.returncode == 0, done.stdout
    for name in ("trainer/state.safetensors", "adapters/solver/adapter_model.safetensors", "adapters/agents.json"):
        one, other = ((run / "checkpoints" / "step-3" / name).read_bytes() for run in (whole, killed))
        assert one == other, name

    calls = [call for episode in EpisodeFiles(whole / "episodes").read(1) for call in episode.calls]
    played = {(call.agent, call.terms.adapter, call.trained) for call in calls}
    assert played == {("solver", "solver", True), ("critic-1", "critic", True), ("judge", None, False)}
    row = next(row for row in metric_rows(whole) if row.get("step") == 1 and "adapters/solver/trained_tokens" in row)
    own = row["adapters/solver/trained_tokens"], row["adapters/critic/trained_tokens"]
    assert min(own) > 0 and sum(own) == row["train/trained_tokens"]
    done = ajet("prove", "whole", cwd=tmp_path)
    assert done.returncode == 0 and "Proven: no wrong token" in done.stdout, done.stdout
    done = ajet("export", "whole", "--check", cwd=tmp_path)
    assert done.returncode == 0 and "behaves as the run's model" in done.stdout, done.stdout
    done = ajet("chat", "whole", "--prompt", "What is 1 + 2?", cwd=tmp_path)
    assert done.returncode == 2 and "ajet chat whole --adapter solver" in done.stdout
    done = ajet("chat", "whole", "--adapter", "critic", "--prompt", "What is 1 + 2?", cwd=tmp_path)
    assert done.returncode == 0 and "model:" in done.stdout, done.stdout

    first = served(whole, "transformers", monkeypatch)
    assert len({tuple(each) for each in first.values()}) == 3, "three policies"


@pytest.mark.extra_slow
def test_an_agent_without_an_adapter_says_so_and_one_begins_with_those_of_a_folder(tmp_path):
    project(tmp_path, lora={"adapters": {"solver": {"rank": 4}}})
    done, _ = trained(tmp_path, "half", "trainer_common.total_training_steps=1")
    assert done.returncode == 2 and "'critic-1' (target 'critic')" in done.stdout
    project(tmp_path)
    done, first = trained(tmp_path, "first", "trainer_common.total_training_steps=1")
    assert done.returncode == 0, done.stdout
    path = f"model.path={first / 'checkpoints' / 'step-1'}"
    done, second = trained(tmp_path, "second", "trainer_common.total_training_steps=1", path)
    assert done.returncode == 0, done.stdout
    done = ajet("prove", "second", cwd=tmp_path)
    assert done.returncode == 0 and "Proven: no wrong token" in done.stdout, done.stdout
    project(tmp_path, lora={"adapters": {"solver": {"rank": 4}}})
    done, _ = trained(tmp_path, "left", path)
    assert done.returncode == 2 and "adapters that this training would not include: critic" in done.stdout
