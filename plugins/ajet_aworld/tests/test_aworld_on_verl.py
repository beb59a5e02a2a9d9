"""Agents of AWorld and a real verl: launched by ajet, and by run.sh of AWorld's page without ajet."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from ajet.record.episodes import read_recorded
from ajet_environments.hosting.lifetime import start_environment, stop_environment
from ajet_proof.recorded.prove import prove_record
from tests.docs.snippets import ROOT
from tests.support.ajet_process import ajet, metric_rows
from tests.support.aworld_fixtures import NOTES
from tests.support.gaia_packages import packages as packages
from tests.support.plain_verl import EXAMPLE, ON_A_CPU, SMALL, environment, long_model, scratch
from tests.support.verl_runs import accounted, skip_without_verl

pytest.importorskip("aworld")
pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]

AGENT = f"""
import sys
from aworld.agents.llm_agent import Agent
from aworld.config import AgentConfig
from train.adapter.verl.aworld_agent_loop import AworldAgentLoop

class Notes(AworldAgentLoop):
    def build_agents(self):
        conf = AgentConfig(llm_base_url=self.get_llm_server_address(), llm_model_name="m", llm_api_key="dummy")
        tools = {{"mcpServers": {{"notes": {{"command": sys.executable, "args": ["-I", {str(NOTES)!r}]}}}}}}
        return Agent(name="a", conf=conf, system_prompt="Be brief.", mcp_config=tools, mcp_servers=["notes"])

def reward(task, output):
    return len(str(output.metadata["final_answer"])) % 7 / 7
"""
YAML = """
ajet:
  experiment_name: notes
  model: {path: MODEL, dtype: float32}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}
  rollout:
    user_workflow: agent.py->Notes
    num_repeat: 3
    max_model_len: 2048
    max_response_length_in_one_turn: 16
    compute_madness_checklist: []
  task_judge: {judge_protocol: agent.py->reward}
  data: {train_batch_size: 2, max_prompt_length: 1536, max_response_length: 512}
  trainer_common: {total_training_steps: 2, save_freq: 2, test_freq: -1, use_kl_loss: false, n_gpus_per_node: 1}
"""


def test_an_agent_of_aworlds_trains_on_verl(tmp_path):
    skip_without_verl()
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "notes.yaml").write_text(YAML.replace("MODEL", str(long_model(tmp_path))))
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"question": "What is {n}?"}}\n' for n in range(8)))
    done = ajet("--conf", "notes.yaml", "--backbone", "verl", "--with-ray", cwd=tmp_path, timeout=2000, fresh=True)
    assert done.returncode == 0, done.stdout[-6000:]
    run = tmp_path / "launcher_record" / "notes"
    assert [row["step"] for row in metric_rows(run) if "tasks" in row] == [1, 2]
    for step in (1, 2):
        recorded = list(read_recorded(run / "episodes" / f"step-{step}.jsonl"))
        assert len(recorded) == 6
        for episode, _ in recorded:
            assert episode.failure is None, episode.failure
            assert {call.agent for call in episode.calls} == {"a"}
        assert accounted(recorded) == sum(episode.sampled_tokens for episode, _ in recorded) > 0
    report = prove_record(str(run), run.parent, ids_only=True)
    assert report.proof.ok, str(report.proof)


AGENT_TRAINER = """
from pathlib import Path
from train.trainer.agent_trainer import AgentTrainer

Path("agent.yaml").write_text("{name: adder, system_prompt: Say it.}")
Path("score.py").write_text(
    "def score(data_source, solution_str, ground_truth, extra_info=None):\\n    return len(solution_str) % 7 / 7\\n"
)
AgentTrainer(
    agent="agent.yaml",
    train_dataset=[{"question": f"{n}+{n}?", "answer": str(2 * n)} for n in range(1, 5)],
    reward_func="score.py",
    config={
        "experiment_name": "life",
        "model": {"path": "embedded:tiny-tools", "dtype": "float32"},
        "data": {"train_batch_size": 2, "max_prompt_length": 256, "max_response_length": 128},
        "rollout": {"num_repeat": 3, "max_model_len": 384, "max_response_length_in_one_turn": 12,
                    "compute_madness_checklist": []},
        "trainer_common": {"total_training_steps": 2, "save_freq": -1, "test_freq": -1, "use_kl_loss": False,
                           "n_gpus_per_node": 1},
    },
    run_path="runs",
).train()
"""


def test_agent_trainers_default_engine_trains(tmp_path):
    skip_without_verl()
    (tmp_path / "life.py").write_text(AGENT_TRAINER)
    done = subprocess.run(
        [sys.executable, "life.py"], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=1500, env={**os.environ, "RAY_worker_niceness": "0", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    run = tmp_path / "runs" / "life"
    assert [row["step"] for row in metric_rows(run) if "tasks" in row] == [1, 2]
    for step in (1, 2):
        found = list(read_recorded(run / "episodes" / f"step-{step}.jsonl"))
        assert len(found) == 6 and {call.agent for episode, _ in found for call in episode.calls} == {"adder"}
        assert accounted(found) == sum(episode.sampled_tokens for episode, _ in found) > 0
    report = prove_record(str(run), run.parent, ids_only=True)
    assert report.proof.ok, str(report.proof)


@pytest.fixture
def few_tools(packages, tmp_path, monkeypatch):
    """`ajet env up` with a server of the GAIA environment's."""
    monkeypatch.setenv("AJET_STATE", str(tmp_path / "state"))
    for name in ("MCP_SERVER_URL", "MCP_SERVER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "few.yaml"
    file.write_text("name: few\ngaia: {servers: [documents-txt-server], confined: false}\n")
    yield start_environment(str(file), port=0)
    stop_environment("few")


def test_the_pages_run_sh_trains_with_a_verl_that_ajet_did_not_launch(few_tools, tmp_path):
    skip_without_verl()
    env = environment(long_model(tmp_path), f"{few_tools.near}/mcp", "documents-txt-server")
    log = tmp_path / "log.txt"
    data = [sys.executable, "-m", "train.examples.train_gaia_with_aworld_verl.create_dataset", "--system", "Be brief."]
    subprocess.run(data, cwd=tmp_path, env=env, check=True)
    with scratch() as folder, log.open("w") as out:
        env["TMPDIR"] = str(folder)
        ray = f"+ray_kwargs.ray_init._temp_dir={folder}/r"
        command = ["bash", str(EXAMPLE / "run.sh"), *SMALL, *ON_A_CPU, ray]
        done = subprocess.run(command, cwd=tmp_path, env=env, stdout=out, stderr=subprocess.STDOUT, timeout=2000)
    said = log.read_text(errors="replace")
    assert done.returncode == 0, said[-8000:]
    assert "ajet did not start verl" in said
    assert [int(number) for number in re.findall(r"\bstep:(\d+) - ", said)][-1] == 2, said[-4000:]
    (run,) = (tmp_path / "checkpoint" / "qwe3" / "launcher_record" / "qwe3" / "debug").iterdir()
    recorded = [each for file in sorted((run / "episodes").glob("*.jsonl")) for each, _ in read_recorded(file)]
    trained = [each for each in recorded if each.split == "train"]
    assert {each.step for each in trained} == {1, 2} and len(trained) == 2 * 2 * 2
    assert {each.split for each in recorded} == {"train", "validation"}
    for episode in recorded:
        assert episode.failure is None, episode.failure
        assert {call.agent for call in episode.calls} == {"gaia_super_agent"}
        assert {call.fork for call in episode.calls} == {None}
    report = prove_record(str(run), run.parent, ids_only=True)
    assert report.proof.ok, str(report.proof)
