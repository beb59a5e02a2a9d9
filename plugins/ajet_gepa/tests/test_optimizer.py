"""`ajet optimize-prompt` with a scripted reflecting model and a tiny real one that plays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ajet.config import load_experiment
from ajet.record.files import read_rows
from ajet.schema.episode import Episode, Failure, Verdict
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet_gepa.optimizer import split_tasks
from ajet_gepa.prompt_key import PromptKey
from tests.support.ajet_process import ajet
from tests.support.judge_fixtures import SECRET, JudgeServer, judge_server

gepa = pytest.importorskip("gepa")

AGENT = '''
from ajet import Task, WorkflowOutput


class Questions:
    def __init__(self, config):
        pass

    def tasks(self, split):
        return [Task(task_id=f"{split}-{n}", main_query=f"What costs {split} {n}?", metadata={"answer": n})
                for n in range(12)]


async def agent(task, tuner):
    """Obeys its prompt: half of the reward for each thing that the prompt demands."""
    prompt = tuner.config.shop.system_prompt
    client = tuner.as_raw_openai_sdk_client()
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": task.main_query}]
    await client.chat.completions.create(model="m", messages=messages)
    reward = 0.5 * ("look up" in prompt) + 0.5 * ("box" in prompt)
    return WorkflowOutput(reward=reward, is_success=reward == 1)
'''
YAML = """
ajet:
  model: {path: embedded:tiny-tools}
  task_reader: {type: agent.py->Questions}
  rollout: {user_workflow: agent.py->agent, max_response_length_in_one_turn: 8, max_model_len: 256}
  data: {max_prompt_length: 200, max_response_length: 56}
shop:
  system_prompt: Name the price.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "shop.yaml").write_text(YAML)
    return tmp_path


def reflect(request: dict[str, Any]) -> str:
    """Propose the next better prompt, as a model would that reads the present one."""
    asked = request["messages"][0]["content"]
    better = "look up, then box" if "look up" in asked.partition("examples")[0] else "look up"
    return f"Try this:\n```\nName the price: {better}.\n```"


def optimize(project: Path, server: JudgeServer, *more: str) -> Any:
    keys = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": SECRET, "DASHSCOPE_API_KEY": ""}
    command = ["optimize-prompt", "shop.yaml", "--key", "shop.system_prompt", "--reflect", "wise", *more]
    budget = () if "--budget" in more else ("--budget", "60")
    return ajet(*command, *budget, cwd=project, **keys)


@pytest.mark.slow
def test_a_better_prompt_wins_on_held_out_tasks(project: Path) -> None:
    with judge_server(reflect) as server:
        done = optimize(project, server)
    assert done.returncode == 0, done.stdout
    record = project / "launcher_record" / "shop"
    (run,) = (record / "prompt").iterdir()
    assert (run / "best_prompt.txt").read_text() == "Name the price: look up, then box."
    summary = json.loads((run / "prompts.json").read_text())
    assert [each["score"] for each in summary["candidates"]] == [0.0, 0.5, 1.0]
    assert "best prompt compared with starting prompt: success +100.0% over 12 tasks" in done.stdout, done.stdout
    assert "write it to shop.system_prompt in shop.yaml" in done.stdout
    assert (project / "shop.yaml").read_text() == YAML, "the user's file is unchanged"
    seen = server.seen[0]["messages"][0]["content"]
    assert "Name the price." in seen and "What costs train" in seen and "Reward: 0.0." in seen
    assert "validation" not in json.dumps(server.seen), "held-out tasks stay unseen"
    everything = "".join(path.read_text(errors="replace") for path in record.rglob("*") if path.is_file())
    assert SECRET not in everything + done.stdout
    rows = list(read_rows(run / "candidates.jsonl"))
    played = {row["task"]["task_id"] for path in (run / "episodes").glob("*.jsonl") for row in read_rows(path)}
    assert len(played) == 12 and {row["candidate"] for row in rows} == {0, 1, 2}
    evaluations = sorted(str(path.relative_to(record.parent)) for path in (record / "eval").iterdir())
    compared = ajet("compare", *(f"{n}={path}" for n, path in zip("ab", evaluations, strict=True)), cwd=project)
    assert "b compared with a: success +100.0% over 12 tasks" in compared.stdout, compared.stdout


@pytest.mark.extra_slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["shop.system_prompt=null"], "The key shop.system_prompt has no text"),
        (["--budget", "9"], "A budget of 9 attempts is too small"),
        ([], "The reflecting model failed"),
    ],
)
def test_mistakes_are_one_screen(project: Path, more: list[str], message: str) -> None:
    with judge_server(lambda request: (401, {"error": {"message": "wrong key"}})) as server:
        done = optimize(project, server, *more)
    assert done.returncode == 2 and message in done.stdout, done.stdout
    assert SECRET not in done.stdout and len(server.seen) <= 1 and "Traceback" not in done.stdout, done.stdout


@pytest.mark.extra_slow
def test_reflection_that_fails_later_keeps_the_best(project: Path) -> None:
    def fail_later(request: dict[str, Any]) -> Any:
        return reflect(request) if "look up" not in str(request).partition("examples")[0] else (401, {})

    with judge_server(fail_later) as server:
        done = optimize(project, server)
    assert done.returncode == 0 and "the search ended early" in done.stdout, done.stdout
    assert "best 0.5" in done.stdout and "best prompt compared with starting prompt" in done.stdout, done.stdout


def test_selection_and_reflection_share_no_task() -> None:
    tasks = [(n, Task(task_id=str(n))) for n in range(10)]
    reflection, selection = split_tasks(tasks, 32, seed=1)
    assert len(selection) == 5 and sorted([*reflection, *selection], key=lambda each: each[0]) == tasks
    assert split_tasks(tasks, 2, seed=1) == split_tasks(tasks, 2, seed=1) != split_tasks(tasks, 2, seed=2)
    with pytest.raises(UserError, match="3 training tasks"):
        split_tasks(tasks[:3], 2, seed=1)


def test_keys_below_ajet_are_prompts_too(project: Path) -> None:
    experiment = load_experiment(project / "shop.yaml", overrides=["rollout.mcp_agent.system_prompt=Search."])
    key = PromptKey("rollout.mcp_agent.system_prompt")
    assert key.read_text(experiment) == "Search."
    changed = key.set_text(experiment, "Search twice.\n")
    assert changed.config.ajet.rollout.mcp_agent.system_prompt == "Search twice.\n"
    assert key.read_text(experiment) == "Search." != key.read_text(changed)
    assert changed.list_training_settings() != experiment.list_training_settings(), "no record is shared"


def test_reflection_gets_judgement_and_failure() -> None:
    from ajet_gepa.adapter import describe_attempt

    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "1+1?"}, {"role": "assistant"}]
    task = Task(task_id="t", main_query="1+1?", metadata={"answer": "2"})
    judged = Episode("a", task, 0, 1, "train", verdict=Verdict(0.0, False, "3 is not 2"), messages=messages)
    shown = describe_attempt(judged)
    assert shown["Generated Outputs"] == "user: 1+1?\nassistant: " and '"answer": "2"' in shown["Feedback"]
    assert "not solved" in shown["Feedback"] and "3 is not 2" in shown["Feedback"]
    failure = Failure("agent", "ValueError", "no box", retryable=False)
    failed = Episode("b", task, 0, 1, "train", status="failed", failure=failure)
    assert "agent: ValueError: no box" in describe_attempt(failed)["Feedback"]
