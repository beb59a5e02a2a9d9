"""The newest version of every package: the wheel with extras, without constraints, in a fresh environment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.environments import get_environment
from scripts.fresh_installs import ROOT, build_wheel, find_interpreter, fresh_environment, install_by_uv, name_wheel
from tests.support.base_install import run

pytestmark = pytest.mark.extra_slow


@pytest.fixture(scope="module")
def ajet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command of an environment with the newest packages."""
    wheel, newest = build_wheel(tmp_path_factory.mktemp("dist")), get_environment("newest")
    interpreter = find_interpreter(newest.python)
    assert interpreter is not None
    with fresh_environment(interpreter) as python:
        install_by_uv(python, name_wheel(wheel, "local,langchain,mcp,tensorboard"), *newest.packages[1:])
        yield [str(python.with_name("ajet"))]


def test_doctor_finds_no_problem(ajet: list[str], tmp_path: Path) -> None:
    """tests/commands/test_doctor.py fails for the same defects with the constraints."""
    sections = json.loads(run(ajet, tmp_path, "doctor", "--json").stdout)["sections"]
    problems = [each for section in sections.values() for each in section if each["state"] == "problem"]
    assert not problems


def test_the_tool_template_trains(ajet: list[str], tmp_path: Path) -> None:
    """tests/docs fail for the same defects with the constraints."""
    run(ajet, tmp_path, "init", "agent", "--template", "tool")
    settings = ["trainer_common.total_training_steps=2", "trainer_common.val_before_train=false"]
    assert "16 scored" in run(ajet, tmp_path, "agent/tool.yaml", "--backbone", "debug").stdout
    run(ajet, tmp_path, "agent/tool.yaml", "--backbone", "local", *settings)
    metrics = (tmp_path / "launcher_record" / "tool" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in metrics.splitlines()]
    gaps = [value for row in rows for key, value in row.items() if key.endswith("logprob_gap_max")]
    assert len(gaps) == 2 and max(gaps) < 0.1


def test_the_quickstart_plays(ajet: list[str], tmp_path: Path) -> None:
    """tests/tutorials/test_quickstart.py fails for the same defects with the constraints."""
    shutil.copytree(ROOT / "tutorial" / "quickstart", tmp_path / "quickstart")
    conversion = {"AJET_CACHE": str(tmp_path / "cache")}
    played = run(ajet, tmp_path, "quickstart/quickstart.yaml", "--backbone", "debug", **conversion)
    assert "16 scored" in played.stdout


@pytest.mark.parametrize("agent", ["OpenAIAgent", "AnthropicAgent", "LangChainAgent"])
def test_a_client_is_captured(agent: str, ajet: list[str], tmp_path: Path) -> None:
    """tests/contract/test_clients_*.py fail for the same defects with the constraints."""
    run(ajet, tmp_path, "init", "agent", "--template", "tool")
    shutil.copy(ROOT / "tests" / "installs" / "client_agents.py", tmp_path / "agent" / "client_agents.py")
    own = f"rollout.user_workflow=client_agents.py->{agent}"
    played = run(ajet, tmp_path, "agent/tool.yaml", "--backbone", "debug", own).stdout
    assert "16 scored" in played and "0 failed, 0 calls tokenized anew" in played and "· 0 tokens sampled" not in played
