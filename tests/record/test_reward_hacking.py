"""The alarm for gamed rewards: fires on constructed runs, and is silent on an honest one that was recorded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from ajet.config import Experiment
from ajet.record import RunDirectory
from ajet.record.reward_hacking import GAMED, EpisodeSummary, detect_gaming
from ajet.schema.episode import Verdict
from ajet.schema.task import Task
from ajet.train.reward_hacking_watch import GamingWatch
from ajet_viewer.library import Library
from ajet_viewer.tables import show_episodes
from tests.support.record_fixtures import episode

TOOL = Path(__file__).parents[1] / "recorded_runs" / "tool.json"
"""The first and last steps of a run of the template `tool`: every eighth episode, and all rewards and lengths."""
STEPS = 20
Run = tuple[list[dict[str, Any]], list[EpisodeSummary]]


def run(
    answer: Callable[[int, int], str],
    *,
    rise: float = 0.6,
    held_out: float | None = 0.6,
    tokens: Callable[[int], int] = lambda step: 20,
    expected: bool = False,
) -> Run:
    """A run whose reward rises by `rise` and, held out, by `held_out`; `answer` to each (step, task)."""
    draw = random.Random(0)
    rows: list[dict[str, Any]] = []
    glimpses = []
    for step in range(1, STEPS + 1):
        done = (step - 1) / (STEPS - 1)
        reward = 0.1 + rise * done + draw.uniform(-0.03, 0.03)
        rows.append({"step": step, "train/reward": reward, "train/reply_tokens": tokens(step)})
        if held_out is not None and step % 5 == 0:
            rows.append({"step": step, "validation/reward": 0.1 + held_out * done, "validation/reward_error": 0.05})
        for task in range(16):
            right = 1.0 if draw.random() < 0.1 + rise * done else 0.0
            glimpses.append(
                EpisodeSummary(
                    f"e{step}-{task}", step, f"t{task}", 0, right, tokens(step) + task, answer(step, task), expected
                )
            )
    return rows, [each for each in glimpses if each.step <= 5 or each.step > STEPS - 5]


def own(step: int, task: int) -> str:
    return f"the answer to {task} is {task * 7 + step}"


def empty(step: int, task: int) -> str:
    return "\\boxed{}" if step > 10 else own(step, task)


def refuses(step: int, task: int) -> str:
    return f"i'm sorry, i cannot help with {task}." if step > 10 else own(step, task)


def apologises(step: int, task: int) -> str:
    return f"I am sorry about order {task}. We send you another one." if step > 10 else own(step, task)


def signs(made: Run) -> str:
    found = detect_gaming(*made)
    if found is None:
        return ""
    assert len(found.suspects) == 3 == len({each.task for each in found.suspects})
    assert all(each.step > STEPS - 5 and each.reward == 1.0 for each in found.suspects)
    return found.text


def test_an_honest_run_is_silent() -> None:
    assert signs(run(own)) == ""
    assert signs(run(own, held_out=None)) == "", "nobody measured"
    assert signs(run(own, tokens=lambda step: 20 * step)) == "", "longer replies, and better held out"
    assert signs(run(own, held_out=0.35)) == "", "held out it rises, if less"
    assert signs(run(lambda step, task: ("yes", "no", "no")[task % 3])) == "", "as often at the beginning"
    assert signs(run(empty, expected=True)) == "", "the answer is what its tasks say is right"
    assert signs(run(empty, rise=0.05)) == "", "no reward rises"
    assert signs(run(apologises)) == "", "an apology is no refusal"
    rows, glimpses = run(empty)
    assert detect_gaming(rows[:9], glimpses) is None, "too early"


def test_one_answer_that_takes_over() -> None:
    assert "rewarded answers to" in (said := signs(run(empty))) and "'\\\\boxed{}'" in said
    assert "rewarded answers to" in signs(run(empty, held_out=None)), "the judge that is gamed judges held out, too"


def test_a_reward_that_is_not_there_held_out() -> None:
    said = signs(run(own, held_out=0.0))
    assert said.startswith(
        "the reward rises, but the held-out number went from 0.1 to 0.1 while the training number rose by 0."
    )
    assert "tokens" not in said
    assert "replies went from 60 to 360 tokens" in signs(run(own, held_out=0.0, tokens=lambda step: 20 * step))
    longest = detect_gaming(*run(own, held_out=0.0, tokens=lambda step: 20 * step))
    assert longest is not None and min(each.tokens for each in longest.suspects) > 400, "the longest are looked at"


def test_rewarded_refusals() -> None:
    assert "of the rewarded answers refuse the task (0% at first)" in signs(run(refuses))


@pytest.mark.parametrize("held_out", [True, False])
def test_the_recorded_tool_run_is_silent(held_out: bool) -> None:
    told = json.loads(TOOL.read_text())
    rows = [row for row in told["rows"] if held_out or "validation/reward" not in row]
    assert rows[-1 if not held_out else -2]["train/reward"] > 0.7, "it learned"
    assert detect_gaming(rows, [EpisodeSummary(*each) for each in told["glimpses"]]) is None


def test_a_run_says_it_once_and_names_episodes_that_can_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = Experiment.from_dict({"ajet": {"backbone": "local"}}, base=tmp_path)
    record = RunDirectory.open(experiment, root=tmp_path)
    rows, glimpses = run(empty)
    told: list[str] = []
    sink = logger.add(told.append, format="{message}", level="WARNING")
    watch = GamingWatch(record, upto=0)
    for row in rows:
        record.metrics.log(row["step"], {name: value for name, value in row.items() if name != "step"})
        if "train/reward" not in row:
            continue
        step = row["step"]
        played = [
            episode(
                f"e{step:03}{task:02}",
                step=step,
                task=Task(main_query="?", task_id=f"t{task}"),
                verdict=Verdict(float(task % 10 < 10 * row["train/reward"])),
                messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": empty(step, task)}],
            )
            for task in range(8)
        ]
        for each in played:
            for call in each.calls:
                call.messages, call.reply = (0,), 1
        record.episodes.write(step, "train", played)
        watch.look(played, step)
        if step == 15:
            watch = GamingWatch(record, upto=15)  # another process goes on
    logger.remove(sink)
    record.close("finished")
    once = [each for each in told if "may be gaming" in each]
    assert len(once) == 2 and "'\\\\boxed{}'" in once[0], "once in each process"
    (row,) = Library(tmp_path).runs()
    assert "boxed" in row[GAMED]
    commands = [line.split() for line in once[-1].splitlines() if " episodes " in line]
    assert len(commands) == 3
    capsys.readouterr()
    name, flag, uuid = commands[0][(at := commands[0].index("episodes") + 1) : at + 3]
    assert (name, flag) == (str(record.path), "--episode")
    show_episodes(name, tmp_path, count=5, best=False, step=None, split="", uuid=uuid)
    said = capsys.readouterr().out
    assert "boxed{}" in said and "1 of 1 episode" in said
    show_episodes(name, tmp_path, count=5, best=False, step="900..999", split="")
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("No episode matches") and "of the split train" in said
