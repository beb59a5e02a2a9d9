"""The debug verb as a person sees it: what it says while it plays, what it keeps, and its verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.cli import launcher
from ajet.record import EpisodeFiles
from ajet.schema.commands import format_command

AGENT = '''
import glob, os, signal, time
from ajet import WorkflowOutput

TOOL = {"type": "function", "function": {"name": "price", "description": "", "parameters": {
    "type": "object", "properties": {"item": {"type": "string"}, "how": {}}}}}


async def call(tuner, **more):
    ask = [{"role": "user", "content": "What does the eel cost?"}]
    return await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=ask, max_tokens=4, **more)


def lines():
    return sum(len(open(path).readlines()) for path in glob.glob("record/*/debug/*/episodes/*.jsonl"))


async def asks(task, tuner):
    """Attempts at "a" succeed in turns."""
    await call(tuner, tools=[TOOL])
    return WorkflowOutput(reward=float(task.main_query == "a" and next(COUNT) % 2))


COUNT = iter(range(100))


def last(task, tuner):
    """Plain: asks in a thread of its own for the record of those before it."""
    import asyncio

    asyncio.run(call(tuner))
    number = next(COUNT)
    if number == 2:
        end = time.monotonic() + 60
        while lines() < 2 and time.monotonic() < end:
            time.sleep(0.02)
        return WorkflowOutput(reward=float(lines()))
    return WorkflowOutput(reward=0.0)


def interrupts(task, tuner):
    """The third attempt presses Ctrl-C once two are recorded, and would go on for long."""
    reward = last(task, tuner).reward
    if reward:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
    return WorkflowOutput(reward=reward)


async def raises(task, tuner):
    await deeper(tuner)


async def deeper(tuner):
    import asyncio

    await asyncio.wait_for(asyncio.get_running_loop().create_task(broken()), 60)


async def broken():
    raise ValueError(f"attempt {next(COUNT)} of mine is broken")
'''


@pytest.fixture
def debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Plays two tasks with a function of AGENT; (exit code, what the screen shows, the record's folder)."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"question": "a"}\n{"question": "b"}\n')
    (tmp_path / "x.yaml").write_text(
        "ajet:\n  model: {path: embedded:tiny-tools, dtype: float32}\n"
        "  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}\n"
        "  rollout: {user_workflow: agent.py->asks, num_repeat: 4, max_model_len: 200}\n"
        "  data: {train_batch_size: 2}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(workflow: str, *overrides: str) -> tuple[int, str, Path]:
        with pytest.raises(SystemExit) as ended:
            launcher.main(
                ["--conf", "x.yaml", "--exp-dir", "record", f"rollout.user_workflow=agent.py->{workflow}", *overrides]
            )
        told = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        (folder,) = Path("record/x/debug").iterdir()
        return ended.value.code, told.out + told.err, folder

    return run


def test_tools_rewards_and_a_verdict(debug: Callable[..., Any]) -> None:
    code, said, folder = debug("asks")
    assert code == 0, said
    assert said.startswith("Reading x.yaml"), "before anything heavy is imported"
    assert "tools: price(item: string, how)" in said and "reward 1" in said
    assert "Verdict: training can learn from 1 of 2 tasks." in said
    first, second = re.findall(r"^  (\w+: .*)$", said, re.MULTILINE)[-2:]
    assert first.endswith("2 of 4 rewards above 0 (rewards 0 to 1): training can learn from it"), said
    assert second.endswith("0 of 4 rewards above 0 (all 0): no difference to learn from"), said
    assert re.search(
        r"On this machine a training step takes about .* to run 8 episodes \(at \d+ tokens per second", said
    ), said
    assert re.search(r"Memory for training: at most about .* GiB: weights .* GiB are free\.", said), said
    given = ("--exp-dir", "record", "rollout.user_workflow=agent.py->asks")
    assert f"Start training: {format_command('--conf', 'x.yaml', '--backbone', 'local', *given)}" in said
    row = json.loads((folder / "metrics.jsonl").read_text())
    assert row["debug/all_tokens"] == row["debug/sampled_tokens"] > 0 and row["debug/seconds"] > 0


def test_cut_replies_are_marked_and_counted(debug: Callable[..., Any]) -> None:
    code, said, folder = debug("asks", "rollout.num_repeat=2", "rollout.max_response_length_in_one_turn=2")
    assert code == 0, said
    assert said.count("✂") == 4, said
    assert re.search(
        r"^4 of 4 replies cut short \(4 by rollout.max_response_length_in_one_turn\)", said, re.MULTILINE
    ), said
    assert json.loads((folder / "metrics.jsonl").read_text())["debug/cut_replies"] == 4


def test_an_episode_is_recorded_when_it_ends(debug: Callable[..., Any]) -> None:
    code, said, folder = debug("last", "rollout.num_repeat=3", "debug.debug_first_n_tasks=1")
    assert code == 0, said
    rewards = [episode.reward for episode in EpisodeFiles(folder / "episodes").read(0, "debug")]
    assert rewards == [0.0, 0.0, 2.0], "the last one saw those before it on the disk, in the middle of its group"


def test_ctrl_c_keeps_what_ended_and_says_where(debug: Callable[..., Any]) -> None:
    code, said, folder = debug("interrupts", "rollout.num_repeat=4", "debug.debug_first_n_tasks=1")
    assert code == 130, said
    kept = EpisodeFiles(folder / "episodes").read(0, "debug")
    assert len(kept) >= 2 and said.count("· attempt ") == len(kept)
    assert f"{len(kept)} episodes: " in said and f"; {4 - len(kept)} had not ended" in said
    assert f"Record: {folder.absolute()}" in said and "Verdict: " in said and "Interrupted." in said
    assert json.loads((folder / "status.json").read_text())["outcome"] == "interrupted"


def test_equal_failures_are_one_with_the_persons_own_lines(debug: Callable[..., Any]) -> None:
    code, said, folder = debug("raises")
    assert code == 2
    assert said.count("✗ agent: ValueError") == 1 and "is the same as in 7 more" in said, said
    panel = said[said.index("✗ agent") :]
    raised = 1 + next(at for at, line in enumerate(AGENT.splitlines()) if "raise ValueError" in line)
    where = [panel.index(text) for text in (" in raises", " in deeper", f"agent.py:{raised} in broken", "raise Value")]
    assert where == sorted(where) and "not shown: " in panel and "of ajet" in panel
    assert "rollout/attempt.py" not in said and "asyncio/" not in said
    assert re.search(rf"^  where +agent.py:{raised} raise ValueError", said, re.MULTILINE), said
    assert len(EpisodeFiles(folder / "episodes").read(0, "debug")) == 8, "all of them are recorded"
    assert "All 8 episodes failed" in said and "Memory for training" not in said and "--backbone debug" in said
