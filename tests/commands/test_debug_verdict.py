"""What debug says of a training by what it played."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ajet.algorithm import open_algorithm
from ajet.commands.debug import advise_on_groups, describe_tasks
from ajet.config import AjetConfig
from ajet.schema.commands import format_command
from ajet.schema.episode import Episode, Failure, Group, Verdict
from ajet.schema.task import Task


def group(*rewards: float | None) -> Group:
    task = Task(task_id="t")
    made = [Episode(str(n), task, n, 0, "debug", verdict=Verdict(reward)) for n, reward in enumerate(rewards)]
    return Group(task, 0, made)


def settings(**changes: object) -> AjetConfig:
    config = AjetConfig()
    for name, value in changes.items():
        section, key = name.split("__")
        object.__setattr__(getattr(config, section), key, value)
    return config


@pytest.mark.parametrize(
    ("rewards", "told"),
    [
        ((0.0, 1.0, 0.0), "1 of 3 rewards above 0 (rewards 0 to 1): training can learn from it"),
        ((0.0, 0.0), "0 of 2 rewards above 0 (all 0): no difference to learn from"),
        ((1.0, 1.00001), "2 of 2 rewards above 0 (1 to 1.00001): too similar to learn from"),
        (
            (1.0, None),
            "1 of 2 rewards above 0, 1 without a score (all 1): no difference to learn from",
        ),
        ((None, None), "0 of 2 scored (0 failed): nothing to learn from"),
    ],
)
def test_a_line_a_task(rewards: tuple[float | None, ...], told: str) -> None:
    assert describe_tasks([group(*rewards)], open_algorithm(AjetConfig()).learns_from) == [f"  t: {told}"]
    many = describe_tasks([group(*rewards)] * 20, open_algorithm(AjetConfig()).learns_from)
    assert len(many) == 13 and many[-1] == "  … and 8 more tasks"


def test_what_to_change_follows_from_what_was_played() -> None:
    failed = group(None)
    failed.episodes = [replace(each, status="failed", failure=Failure("agent", "E", "m")) for each in failed.episodes]
    half = [failed, group(*[0.0] * len(failed.episodes))]
    assert advise_on_groups(half, AjetConfig()).endswith("episodes failed: correct the code that the hints above name")
    assert "set a judge" in advise_on_groups([group(None)], AjetConfig())
    judged = settings(task_judge__judge_protocol="judge.py->judge")
    assert "the judge returned None" in advise_on_groups([group(None)], judged)
    never = advise_on_groups([group(0.0, 0.0), group(0.0)], AjetConfig())
    for given in (format_command("sft", "--model", AjetConfig().model.path), "docs/sft.md"):
        assert never.index(given) < never.index("easier tasks")
    assert "harder tasks" in advise_on_groups([group(1.0, 1.0)], AjetConfig())
    assert "rollout.num_repeat to 4" in advise_on_groups([group(1.0), group(0.0)], settings(rollout__num_repeat=1))
    assert "rollout.temperature" in advise_on_groups([group(1.0, 1.0)], settings(rollout__temperature=0.0))


@pytest.mark.parametrize(
    ("verdicts", "is_never"),
    [
        ([(0.0, None), (-1.0, None)], True),
        ([(0.5, False), (0.5, False)], True),
        ([(0.0, True), (0.0, False)], False),
        ([(0.1, None)], False),
    ],
)
def test_given_answers_come_first_where_nothing_succeeds(verdicts, is_never) -> None:
    made = group(*(reward for reward, _ in verdicts))
    for episode, (_, success) in zip(made.episodes, verdicts, strict=True):
        episode.verdict.success = success
    assert ("docs/sft.md" in advise_on_groups([made], AjetConfig())) is is_never


def test_a_line_a_task_is_one_whatever_the_task_is_called() -> None:
    made = group(0.0, 0.0)
    made.task.task_id = "a\nb\x1b[31m" + "x" * 6000
    (line,) = describe_tasks([made], lambda _: False)
    assert "\n" not in line and "\x1b" not in line and line.startswith("  a b�[31mx") and len(line) < 140
