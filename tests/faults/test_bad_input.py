"""What a person gets for each mistake: exit code 2 and one screen that names the place, or a failed episode that is
shown, counted and never trained on."""

import textwrap
from pathlib import Path

import pytest

from tests.support.ajet_process import ajet, metric_rows

pytestmark = pytest.mark.slow


def slow(*values):
    """A case that comes to the person by the same way as its neighbours."""
    return pytest.param(*values, marks=pytest.mark.extra_slow)


WORKFLOW = """
import asyncio
from ajet import Workflow, WorkflowOutput

class Asks(Workflow):
    async def execute(self, workflow_task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await client.chat.completions.create(model="tuned", messages=messages)
        return WorkflowOutput(metadata={"final_answer": reply.choices[0].message.content})

class Rewards(Asks):
    async def execute(self, workflow_task, tuner):
        output = await super().execute(workflow_task, tuner)
        output.reward = 1.0
        return output

class Raises(Asks):
    async def execute(self, workflow_task, tuner):
        raise ValueError("the agent is broken")

class Hangs(Asks):
    async def execute(self, workflow_task, tuner):
        await asyncio.Event().wait()

class WrongType(Asks):
    async def execute(self, workflow_task, tuner):
        return 42

class NeverCalls(Asks):
    async def execute(self, workflow_task, tuner):
        return WorkflowOutput(reward=1.0)
"""

JUDGE = """
from ajet.task_judge.base_judge import BaseJudge

class Raises(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        raise KeyError("no such answer")

class NaN(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return float("nan"), False
"""

GOOD = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file:
      training: {file_path: tasks.jsonl}
      validation: {file_path: tasks.jsonl}
  rollout:
    user_workflow: workflow.py->Rewards
    num_repeat: 2
    max_response_length_in_one_turn: 8
    max_model_len: 512
    episode_timeout: 120
    max_retries: 0
    compute_madness_checklist: []
  data: {train_batch_size: 2, max_prompt_length: 256, max_response_length: 128}
  trainer_common: {total_training_steps: 1, test_freq: -1, use_kl_loss: false, optim: {lr: 1.0e-4}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "workflow.py").write_text(WORKFLOW)
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "tasks.jsonl").write_text(
        "".join(f'{{"main_query": "What does the eel cost? {i}"}}\n' for i in range(4))
    )
    (tmp_path / "x.yaml").write_text(textwrap.dedent(GOOD))
    return tmp_path


def launch(project: Path, *overrides: str, backbone: str = "debug"):
    return ajet("--conf", "x.yaml", "--backbone", backbone, *overrides, cwd=project)


def test_the_project_itself_is_good(project):
    done = launch(project)
    assert done.returncode == 0, done.stdout
    assert "4 scored" in done.stdout


EDITS = {
    "unknown key": (("num_repeat", "num_repeats"), ["x.yaml:11", "num_repeat"]),
    "wrong type": (("num_repeat: 2", "num_repeat: many"), ["x.yaml:11", "integer"]),
    "syntax error": (("rollout:", "rollout: ]["), ["x.yaml:9"]),
    "placeholder": (("tasks.jsonl", "<YOUR_FILE>"), ["<YOUR_FILE>"]),
    "missing file": (("training: {file_path: tasks.jsonl}", "training: {file_path: none.jsonl}"), ["none.jsonl"]),
    "missing class": (("->Rewards", "->Reward"), ["Rewards", "workflow.py"]),
    "missing module": (("workflow.py->", "workfow.py->"), ["workfow.py"]),
    "model path": (("embedded:tiny-tools", "./no/such/model"), ["no/such/model"]),
    "embedded name": (("embedded:tiny-tools", "embedded:tiny-tool"), ["tiny-tools"]),
}


@pytest.mark.parametrize("mistake", EDITS)
def test_a_mistake_in_the_yaml_is_one_screen(project, mistake):
    (before, after), expected = EDITS[mistake]
    text = (project / "x.yaml").read_text()
    assert before in text
    (project / "x.yaml").write_text(text.replace(before, after, 1))
    done = launch(project)
    check_one_screen(done)
    for words in expected:
        assert words in done.stdout, done.stdout


def test_a_missing_section(project):
    (project / "x.yaml").write_text("ajet:\n  model: {path: 'embedded:tiny-tools'}\n")
    done = launch(project)
    check_one_screen(done)
    assert "user_workflow" in done.stdout or "task_reader" in done.stdout


@pytest.mark.parametrize(
    ("rows", "expected"),
    [('{"main_query": "a"}\n{"main_query": \n{"main_query": "b"}\n', "tasks.jsonl:2"), ("", "tasks.jsonl")],
    ids=["a bad row in the middle", "an empty data set"],
)
def test_task_files(project, rows, expected):
    (project / "tasks.jsonl").write_text(rows)
    done = launch(project)
    check_one_screen(done)
    assert expected in done.stdout


def test_a_prompt_longer_than_the_model(project):
    (project / "tasks.jsonl").write_text('{"main_query": "%s"}\n' % ("eel " * 600))
    done = launch(project, "data.max_prompt_length=5000", "rollout.max_model_len=512")
    assert "context_length_exceeded" in done.stdout or "512" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("workflow", "expected"),
    [
        ("Raises", ["the agent is broken", "a breakpoint there"]),
        ("Hangs", ["timeout", "rollout.episode_timeout"]),
        slow("WrongType", ["an object of the class int", "return WorkflowOutput(metadata="]),
        slow("NeverCalls", ["no_model_call", "give the client the tuner"]),
    ],
)
def test_a_broken_workflow_is_a_failed_episode(project, workflow, expected):
    late = ["rollout.episode_timeout=2"] if workflow == "Hangs" else []
    done = launch(project, f"rollout.user_workflow=workflow.py->{workflow}", *late)
    assert "4 failed" in done.stdout and "(agent)" in done.stdout, done.stdout
    for words in expected:
        assert words in done.stdout, done.stdout
    assert done.returncode == 2 and "episodes failed" in done.stdout, done.stdout


def test_a_workflow_that_never_calls_the_model_trains_nothing(project):
    done = launch(project, "rollout.user_workflow=workflow.py->NeverCalls", backbone="local")
    check_one_screen(done)
    assert "without a model call" in done.stdout


@pytest.mark.parametrize("judge", ["Raises", slow("NaN")])
def test_a_broken_judge_is_a_failed_episode(project, judge):
    done = launch(project, "rollout.user_workflow=workflow.py->Asks", f"task_judge.judge_protocol=judge.py->{judge}")
    assert "4 failed" in done.stdout and "(judge)" in done.stdout, done.stdout


def test_training_refuses_a_step_in_which_everything_failed(project):
    done = launch(project, "rollout.user_workflow=workflow.py->Raises", backbone="local")
    check_one_screen(done)
    assert "the agent is broken" in done.stdout
    assert metric_rows(project / "launcher_record" / "x") == []


def check_one_screen(done) -> None:
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stdout, done.stdout
    assert len(done.stdout.splitlines()) <= 40, done.stdout
