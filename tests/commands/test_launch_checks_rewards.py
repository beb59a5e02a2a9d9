"""A workflow that sets no reward is refused before it runs, unless something gives one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.commands.launch_checks import require_launchable
from ajet.config import load_experiment
from ajet.schema.errors import ConfigError

AGENT = """\
ajet:
  model: {path: embedded:tiny-tools}
  environment: {use: python server.py}
  task_reader: {type: random_dummy}
  rollout:
    user_workflow: mcp_agent
    max_model_len: 512
  data: {max_prompt_length: 200}
custom_reward_function: {path: reward.py, name: score}
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--dry-run"], ["--backbone", "debug"], ["--backbone", "verl", "--dry-run"]])
def test_a_run_without_any_reward_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(AGENT)
    with pytest.raises(SystemExit) as ended:
        launcher.main(["--conf", "m.yaml", *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "m.yaml:6" in said
    assert "ajet.task_judge.judge_protocol: reward.py->score" in said
    assert not (tmp_path / "launcher_record").exists()


OWN = """\
from ajet.schema.task import WorkflowOutput
from ajet_mcp.agent import McpAgentWorkflow
class Own(McpAgentWorkflow):
    def outcome(self, workflow_task, answer, told):
        return WorkflowOutput(reward=1.0)
async def agent(task, tuner):
    return 1.0
"""


@pytest.mark.parametrize(
    "override",
    [
        *("task_judge.scorer=exact", "task_judge.judge_protocol=own.py->agent", "task_reader.type=reasoning_gym"),
        *("task_reader.type=gsm8k", "rollout.user_workflow=own.py->Own", "rollout.user_workflow=own.py->agent"),
        *("task_judge.scorers=[{name: exact}]", "task_judge.judge_type=rubrics_auto_grader"),
        "task_judge.judges=[{model: m}]",
    ],
)
def test_whatever_gives_a_reward_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.yaml").write_text(AGENT)
    (tmp_path / "own.py").write_text(OWN)
    require_launchable(load_experiment(tmp_path / "m.yaml", overrides=[override]))


@pytest.mark.parametrize("module", ["ajet_command.workflow", "ajet.workflow.command"])
@pytest.mark.parametrize("score", ["judge", "printed"])
def test_a_command_needs_a_judge_unless_it_prints(tmp_path: Path, score: str, module: str) -> None:
    (tmp_path / "m.yaml").write_text(
        AGENT.replace("mcp_agent", f"{module}->CommandWorkflow")
        + f"command_agent: {{command: [echo, a], score: {score}}}\n"
    )
    experiment = load_experiment(tmp_path / "m.yaml")
    if score == "printed":
        return require_launchable(experiment)
    with pytest.raises(ConfigError) as caught:
        require_launchable(experiment)
    assert "m.yaml:6" in caught.value.where
