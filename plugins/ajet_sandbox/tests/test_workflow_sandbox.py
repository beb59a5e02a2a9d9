"""`tuner.sandbox()`: a workflow runs what its model wrote in a sandbox of its attempt's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from loguru import logger

from ajet import Workflow, WorkflowOutput, WorkflowTask
from tests.support.rollouts import flows, stage
from tests.support.runs import begin_record
from tests.support.sandbox_fixtures import require


class RunsCode(Workflow):
    """Its model says yes; a sandbox says what that is worth."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        answer = await flows.ask(tuner, "x")
        before = children()
        box = tuner.sandbox({"ANSWER": answer})
        done = box.python("import os; print(os.environ['ANSWER'], os.getcwd() == '/box')")
        box.python("import os, time\nif os.fork() == 0:\n    time.sleep(3600)")
        said, boxed = done.stdout.decode().split()
        return WorkflowOutput(metadata={"answer": said, "boxed": boxed, "pids": sorted(children() - before)})


def children() -> set[int]:
    """Processes that this one started, and what they started."""
    return {each.pid for each in psutil.Process().children(recursive=True)}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.extra_slow)])
def test_an_episode_has_a_sandbox_that_ends_with_it(isolation: str) -> None:
    require("bubblewrap")
    with stage(RunsCode, isolation=isolation, num_repeat=1) as made:
        episode = made.play(1)[0].episodes[0]
    assert episode.failure is None, episode.failure
    assert episode.reward == 1.0 and episode.metadata["boxed"] == "True"
    assert [(use.name, use.arguments) for use in episode.tool_uses] == [
        ("sandbox.open", {"mechanism": "bubblewrap", "confined": True})
    ]
    assert episode.metadata["pids"] and not any(map(psutil.pid_exists, episode.metadata["pids"]))


def test_none_is_kept_with_each_episode() -> None:
    with stage(RunsCode, tree={"environment": {"sandbox": "none"}}, num_repeat=2) as made:
        episodes = made.play(1)[0].episodes
    assert [episode.metadata["boxed"] for episode in episodes] == ["False"] * 2
    for episode in episodes:
        assert [use.arguments for use in episode.tool_uses] == [{"mechanism": "none", "confined": False}]


def test_a_launch_warns_of_none_before_it_begins(tmp_path: Path) -> None:
    said: list[str] = []
    number = logger.add(said.append, level="WARNING", format="{message}")
    try:
        for sandbox in ("none", "auto"):
            begin_record({"environment": {"sandbox": sandbox}}, tmp_path)
    finally:
        logger.remove(number)
    assert sum("environment.sandbox is none" in each for each in said) == 1


def test_no_sandbox_is_the_sandboxs_failure_and_says_what_helps() -> None:
    with stage(RunsCode, tree={"environment": {"sandbox_python": "/no/python"}}, num_repeat=1) as made:
        episode = made.play(1)[0].episodes[0]
    assert episode.failure is not None and episode.failure.boundary == "sandbox"
    assert "/no/python" in episode.failure.message and episode.reward is None
