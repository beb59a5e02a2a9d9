"""`command_agent.verify`: a command scores the agent's folder, and decides nothing when it fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.rollout.components import load_workflow
from ajet.schema.errors import ConfigError, JudgeFailure
from ajet.workflow import CommandWorkflow
from tests.support.command_agents import agent, shell

pytestmark = pytest.mark.slow
WRITE = 'printf "%s" {} > "$AJET_REWARD_FILE"'


def score(folder: Any, work: str, **verify: Any) -> Any:
    """Run an agent of one shell line, then the verifier; return the output."""
    with agent(folder, command=shell(work), verify=verify) as (_, run):
        return run()


@pytest.mark.parametrize(("code", "reward"), [(0, 1.0), (3, 0.0)])
def test_the_exit_code_is_the_reward(code, reward, tmp_path):
    output = score(tmp_path, "echo 42 > answer.txt", command=shell(f"cat answer.txt; exit {code}"))
    assert output.reward == reward and output.metadata["verify"] == {"exit_code": code, "stdout": "42\n", "stderr": ""}
    assert output.log_metrics["verify_seconds"] > 0


def test_a_number_in_the_file_is_the_reward(tmp_path):
    output = score(tmp_path, "true", command=shell(WRITE.format("-0.25")), reward="file")
    assert output.reward == -0.25


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("true", "wrote no reward"),
        (WRITE.format("nan"), "no finite number"),
        (WRITE.format("1e999"), "no finite number"),
        (WRITE.format("'all passed'"), "no finite number"),
        (WRITE.format("''"), "no finite number"),
        (WRITE.format("1") + "; exit 2", "ended with exit code 2"),
        (WRITE.format("1") + "; kill -9 $$", "killed by signal 9"),
        (WRITE.format("1") + "; sleep 60", "did not end within 1 seconds"),
        ('mkfifo "$AJET_REWARD_FILE"', "no finite number"),
        ('ln -s /etc/hostname "$AJET_REWARD_FILE"', "wrote no reward"),
    ],
)
def test_a_broken_verifier_gives_no_reward(line, reason, tmp_path):
    with pytest.raises(JudgeFailure, match=reason):
        score(tmp_path, "true", command=shell(line), reward="file", timeout=1)


@pytest.mark.parametrize("command", [shell("sleep 60"), shell("kill -11 $$"), ["/nowhere/verifier"]], ids=str)
def test_without_exit_code_there_is_no_reward(command, tmp_path):
    with pytest.raises(JudgeFailure):
        score(tmp_path, "true", command=command, timeout=1)


def test_a_reward_written_by_the_agent_is_removed(tmp_path):
    work = 'mkdir ../verifier; echo 1 > ../verifier/reward; echo 1 > "$(dirname "$AJET_TASK_FILE")/verifier/reward"'
    with pytest.raises(JudgeFailure, match="wrote no reward"):
        score(tmp_path, work, command=shell("true"), reward="file")


@pytest.mark.parametrize(
    "work",
    [
        "mkdir -p tests; echo exit 0 > tests/check.sh; chmod 444 tests/check.sh; chmod 555 tests",
        "mkdir -p ../other tests; echo exit 0 > ../other/check.sh; ln -s ../../other/check.sh tests/check.sh",
        "mkdir ../other; echo exit 0 > ../other/check.sh; ln -s ../other tests",
        "mkdir -p tests/check.sh/deep",
        "rm -rf ../work; echo file > ../work",
    ],
)
@pytest.mark.parametrize("as_folder", [False, True])
def test_files_that_the_agent_edited_are_replaced(work, as_folder, tmp_path):
    (tmp_path / "hidden" / "sum" / "tests").mkdir(parents=True)
    (tmp_path / "hidden" / "sum" / "tests" / "check.sh").write_text("exit 1")
    files = "hidden/{task_id}" if as_folder else {"tests/check.sh": "exit 1"}
    output = score(tmp_path, work, command=["sh", "tests/check.sh"], files=files)
    assert output.reward == 0.0


def test_the_verifier_sees_no_key(tmp_path):
    output = score(tmp_path, 'echo "$OPENAI_API_KEY" > left', command=shell('env; cat left "$AJET_TASK_FILE"'))
    printed = output.metadata["verify"]["stdout"]
    variables, _, rest = printed.partition("[redacted key]\n")
    assert "_API_KEY" not in variables and "[redacted" not in variables
    task = json.loads(rest)
    assert task["metadata"] == {"answer": "42", "hint": "add"} and task["answer"] == ""


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"verify": {"command": ["a"]}, "score": "printed"}, "both set the reward"),
        ({"verify": {"command": ["a"], "files": {"../x": ""}}}, "outside the episode's folder"),
        ({"verify": {"command": ["a"], "files": "nowhere"}}, "nowhere is not a folder"),
        ({"verify": {"command": "a {api_key}"}}, "a key must not be an argument"),
        ({"files": {"~/x": ""}}, "files below ~/ need home: true"),
    ],
)
def test_a_wrong_section_is_refused_before_the_run(section, reason, tmp_path):
    tree = {"ajet": {"rollout": {"user_workflow": "ajet.workflow->CommandWorkflow"}}}
    with pytest.raises(ConfigError, match=reason):
        load_workflow(Experiment.from_dict({**tree, "command_agent": {"command": ["a"], **section}}, base=tmp_path))


def test_a_verifier_needs_no_judge(tmp_path):
    section = {"command": ["a"], "verify": {"command": ["b"]}}
    config = Experiment.from_dict({"ajet": {}, "command_agent": section}, base=tmp_path).config
    assert not CommandWorkflow.needs_judge(config)
