"""AgentScope 2 in an environment of its own: its agents play, are proven and train; the seed's agent is refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ajet.record import read_status
from scripts.environments import get_environment
from tests.docs.test_tutorials import MATH, SMALL, assert_trained, gsm8k  # noqa: F401
from tests.support.environments import ROOT, find_environment_python

pytestmark = pytest.mark.extra_slow
PLAYED_THERE = ("tests/workflow/test_tuner_agentscope_two.py", "tests/contract/test_clients_agentscope_two.py")


def run_there(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a module of Python in the environment; its two streams are read as one."""
    command = [str(find_environment_python("agentscope-2")), "-m", *words]
    threads = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        command, cwd=cwd, env=threads, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600
    )


def test_its_episodes_are_proven() -> None:
    done = run_there("pytest", "-n", "0", "-rs", "-p", "no:cacheprovider", *PLAYED_THERE)
    assert done.returncode == 0 and "SKIPPED" not in done.stdout, done.stdout[-4000:]


def test_the_tutorial_trains(tmp_path: Path, gsm8k: str) -> None:  # noqa: F811
    spread = ["rollout.num_repeat=6", "rollout.agent_madness_reward=-1.0", gsm8k]
    agent = "rollout.user_workflow='workflow_agentscope2.py->MathAgentWorkflow'"
    done = run_there("ajet", "--conf", str(MATH), "--backbone", "local", *SMALL, *spread, agent, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:]
    (status,) = (tmp_path / "launcher_record" / MATH.stem).rglob("status.json")
    assert (read_status(status.parent) or {})["outcome"] == "finished"
    assert any(row.get("grad_norm", 0) > 0 for row in assert_trained(status.parent, 12))


def test_code_for_version_one_gets_a_sentence(tmp_path: Path, gsm8k: str) -> None:  # noqa: F811
    done = run_there("ajet", "--conf", str(MATH), "--backbone", "debug", *SMALL, gsm8k, cwd=tmp_path)
    version = get_environment("agentscope-2").packages[0].partition("==")[2]
    said = " ".join(done.stdout.replace("│", " ").split())
    assert done.returncode == 2 and f"AgentScope {version} is installed; code for AgentScope 1 needs" in said, said


def test_doctor_accepts_it() -> None:
    findings = json.loads(run_there("ajet", "doctor", "--json").stdout)["sections"]["packages"]
    states = {each["topic"]: each["state"] for each in findings}
    assert (states["[agentscope]"], states["[mcp]"]) == ("ok", "ok"), findings
