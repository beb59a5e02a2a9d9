"""What `ajet config validate` finds of a project of verl's without running any of its code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.commands.plan import require_present
from ajet.config import load_experiment
from ajet.schema.errors import ConfigError, UserError
from ajet.task_judge import open_judge
from ajet.train.footprint import require_tools_fit

AGENT = """\
ajet:
  model: {path: embedded:tiny-tools}
  task_reader: {type: random_dummy}
  task_judge: {judge_protocol: reward.py->compute_score}
  rollout:
    user_workflow: mcp_agent
    max_model_len: 512
  data: {max_prompt_length: 200}
"""
REWARD = "def compute_score(data_source, solution_str, ground_truth):\n    return 1.0\n"
LIKE_VERLS = "def compute_score(data_source, solution_str, ground_truth_value, extra):\n    return 1.0\n"
TOOLS = "tools: [{class_name: a.B, mcp: {mcp_servers_config_path: ./servers.json}}]\n"


def project(folder: Path, more: str = "") -> Path:
    """Write the YAML and its reward; return the YAML's path."""
    (folder / "m.yaml").write_text(AGENT + more)
    (folder / "reward.py").write_text(REWARD)
    return folder / "m.yaml"


def test_an_agent_without_tools_is_not_valid(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        require_present(load_experiment(project(tmp_path)))
    assert caught.value.where == "ajet.environment.use" and "docs/mcp.md" in caught.value.do


def test_an_agent_without_a_reward_is_not_valid(tmp_path: Path) -> None:
    path = project(tmp_path, "  environment: {use: python server.py}\n")
    path.write_text(path.read_text().replace("  task_judge: {judge_protocol: reward.py->compute_score}\n", ""))
    with pytest.raises(ConfigError) as caught:
        require_present(load_experiment(path))
    assert "m.yaml:5" in caught.value.where


def test_a_file_of_verls_tools_names_its_servers(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(TOOLS)
    with pytest.raises(ConfigError) as caught:
        require_present(load_experiment(project(tmp_path, "  environment: {use: tools.yaml}\n")))
    assert caught.value.where == str(tmp_path / "tools.yaml")
    assert "ajet.environment.use: ./servers.json" in caught.value.do


def test_what_is_not_looked_at_names_the_tools(tmp_path: Path) -> None:
    unchecked, _ = require_present(load_experiment(project(tmp_path, "  environment: {use: python server.py}\n")))
    assert any("environment.use" in each for each in unchecked)


def test_a_reward_like_verls_is_shown_verls_parameters(tmp_path: Path) -> None:
    experiment = load_experiment(project(tmp_path, "  environment: {use: python server.py}\n"))
    (tmp_path / "reward.py").write_text(LIKE_VERLS)
    for look in (open_judge, require_present):
        with pytest.raises(ConfigError) as caught:
            look(experiment)
        assert caught.value.where.endswith("reward.py:1")
        assert "(data_source, solution_str, ground_truth, extra_info)" in caught.value.do


@pytest.mark.parametrize(
    ("parameters", "judge", "problem"),
    [
        ("task", "{judge_protocol: reward.py->score}", "the arguments (task, output)"),
        ("output, task", "{judge_protocol: reward.py->score}", "but its parameters are (output, task)"),
        ("prompt, completion", "{judge_protocol: reward.py->score}", "needs completion and prompt"),
        ("completions, trainer_state", "{judge_protocol: reward.py->score}", "needs trainer_state"),
        ("model_answer, colour, *, size", "{scorer: reward.py->score}", "the parameters colour, size"),
        ("model_answer", "{scorers: [{name: reward.py->score, arguments: {size: 1}}]}", "has no argument size"),
        ("task: Missing, output=missing(), /", "{judge_protocol: reward.py->score}", ""),
        ("completions, **columns", "{judge_protocol: reward.py->score}", ""),
        ("model_answer, size: int", "{stages: [{scorer: reward.py->score, arguments: {size: 1}}]}", ""),
    ],
)
def test_parameters_of_a_reward_are_checked_unrun(tmp_path: Path, parameters: str, judge: str, problem: str) -> None:
    path = project(tmp_path, "  environment: {use: python server.py}\n")
    path.write_text(path.read_text().replace("{judge_protocol: reward.py->compute_score}", judge))
    (tmp_path / "reward.py").write_text(f"raise SystemExit('it ran')\n\ndef score({parameters}) -> Missing: ...\n")
    if not problem:
        require_present(load_experiment(path))
        return
    with pytest.raises(ConfigError) as caught:
        require_present(load_experiment(path))
    assert problem in caught.value.what and caught.value.where.endswith("reward.py:3")


def test_hidden_parameters_are_left_to_the_run(tmp_path: Path) -> None:
    path = project(tmp_path, "  environment: {use: python server.py}\n")
    (tmp_path / "reward.py").write_text("@wrapped\ndef compute_score(none): ...\n")
    require_present(load_experiment(path))


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\npython -m verl a=1\n", "set -x\npython3 -m verl.trainer.main_ppo a=b \\\n"]
)
def test_a_script_of_overrides_says_where_they_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(SystemExit) as ended:
        launcher.main(["config", "validate", "--conf", str(tmp_path / "run.sh")])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "run.sh:1" in said and "docs/coming_from_verl.md" in said


def test_another_python_is_named(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    for command, hint in ((str(other), True), (sys.executable, False)):
        experiment = load_experiment(project(tmp_path, f"  environment: {{use: {command} none.py}}\n"))
        with pytest.raises(UserError) as caught:
            require_tools_fit(experiment)
        assert caught.value.where == "ajet.environment.use" and ("{python}" in caught.value.do) == hint
