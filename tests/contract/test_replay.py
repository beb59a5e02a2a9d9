"""`environment.replay`: a recorded run's tool uses in place of the tools."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ajet.environment.replay import ReplayMissError, RunReplay
from ajet.record import EpisodeFiles
from ajet.schema.errors import ConfigError, UserError
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.schema.tool_use import BROWSE_AGENT, ToolUse, compute_digest
from ajet.workflow import Workflow
from ajet.workflow.tools import ToolFailedError
from tests.support.record_fixtures import episode
from tests.support.rollouts import stage

pytestmark = pytest.mark.slow

WORLD = {"money": 10, "asked": 0}


def pay(amount: int) -> dict[str, int]:
    """A tool with state."""
    WORLD["asked"] += 1
    WORLD["money"] -= amount
    if WORLD["money"] < 0:
        raise ValueError("broke")
    return {"left": WORLD["money"]}


class Pays(Workflow):
    """Twice the same, once more than there is, and two at the same time."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        paid = tuner.tool(pay)
        told = [paid(4)["left"], paid(4)["left"]]
        try:
            paid(amount=4)
        except (ValueError, ToolFailedError) as problem:
            told.append("broke" in str(problem))

        async def late(name: str) -> str:
            await asyncio.sleep(0.02 if name == "b" else 0.01)
            WORLD["asked"] += 1
            return f"{name}!"

        told += await asyncio.gather(tuner.tool(late)("b"), tuner.tool(late)("a"))
        with tuner.tool("look", '{"at": 1}') as running:
            if not running.replayed:
                WORLD["asked"] += 1
                running.result = "seen"
        reply = await tuner.as_raw_openai_sdk_client().chat.completions.create(
            messages=[{"role": "user", "content": str([*told, running.result])}]
        )
        return WorkflowOutput(metadata={"answer": reply.choices[0].message.content, "told": told})


class PaysMore(Pays):
    """Goes another way than the record."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=[{"role": "user", "content": "?"}])
        with suppress(Exception):  # as agents do, who tell the model of it
            return WorkflowOutput(reward=float(tuner.tool(pay)(5)["left"]))
        return WorkflowOutput(reward=0.0)


def play(workflow: type[Any], folder: Path, isolation: str = "thread", **environment: Any) -> Any:
    WORLD.update(money=10, asked=0)
    with stage(workflow, folder=folder, isolation=isolation, tree={"environment": environment}) as made:
        return made.episode()


@pytest.fixture
def recorded(tmp_path: Path) -> Any:
    """An episode in a run folder `before`."""
    found = play(Pays, tmp_path)
    assert found.failure is None and WORLD["asked"] == 6
    (tmp_path / "before").mkdir()
    EpisodeFiles(tmp_path / "before" / "episodes").write(1, "train", [found])
    return found


@pytest.mark.parametrize("isolation", ["thread", pytest.param("process", marks=pytest.mark.extra_slow)])
def test_a_replayed_attempt_asks_no_tool_and_is_told_the_same(recorded: Any, tmp_path: Path, isolation: str) -> None:
    again = play(Pays, tmp_path, isolation, replay="before")
    assert again.failure is None and WORLD["asked"] == 0
    assert again.metadata == recorded.metadata and again.messages == recorded.messages

    def told(use: ToolUse) -> Any:
        return use.name, use.arguments, use.result, use.digest, use.error, use.json

    assert sorted(map(told, again.tool_uses), key=str) == sorted(map(told, recorded.tool_uses), key=str)


def test_a_miss_fails_the_episode_as_the_environment_or_goes_live(recorded: Any, tmp_path: Path) -> None:
    missed = play(PaysMore, tmp_path, replay="before")
    assert missed.failure is not None
    assert (missed.failure.boundary, missed.failure.kind) == ("environment", "tool_environment")
    assert 'pay({"amount":5}) after 0 calls' in missed.failure.message and not missed.scored and not WORLD["asked"]
    assert play(PaysMore, tmp_path, replay="before", replay_miss="live").reward == 5.0


def test_a_run_that_is_not_there_or_has_no_uses_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no recorded run gone"):
        play(Pays, tmp_path, replay="gone")
    EpisodeFiles(tmp_path / "old" / "episodes").folder.parent.mkdir()
    EpisodeFiles(tmp_path / "old" / "episodes").write(1, "train", [episode(tool_uses=[])])
    with pytest.raises(UserError, match="recorded no tool uses"):
        play(Pays, tmp_path, replay="old")


def use(name: str, started: float, ended: float, result: str, **more: Any) -> ToolUse:
    return ToolUse(name, {}, result, compute_digest(result), started, ended, **more)


def test_the_same_call_after_other_uses_is_another_state(tmp_path: Path) -> None:
    one = episode("a", tool_uses=[use("set", 0, 1, "ok"), use("get", 2, 3, "new")])
    seen = episode("c", repeat=3, tool_uses=[use("see", 0, 3, "", images=1), use(BROWSE_AGENT, 1, 2, "short")])
    seen.tool_uses.append(use("after", 4, 5, "on"))
    other = episode("b", repeat=2, tool_uses=[use("get", 0, 1, "old"), use("big", 2, 3, "be", cut=5)])
    EpisodeFiles(tmp_path / "episodes").write(1, "train", [one, other, seen])
    (tmp_path / "episodes" / "step-1.bin").unlink()  # tokens: nothing of theirs is read
    replay = RunReplay(tmp_path, "error")
    walk = replay.walk(one.task, 1)
    found = walk("get", {})
    assert found is not None and found.result == "old"
    walk.note_use(found)
    with pytest.raises(ReplayMissError, match="only the beginning"):
        walk("big", {})
    with pytest.raises(ReplayMissError, match="after 1 calls"):
        walk("set", {})
    walk = replay.walk(one.task, 3)
    with pytest.raises(ReplayMissError, match="only the text"):
        walk("see", {})
    walk.note_use(seen.tool_uses[0])
    walk.note_use(use(BROWSE_AGENT, 5, 6, "asked anew"))
    after = walk("after", {})
    assert after is not None and after.result == "on", "what was asked on the way to a result is no use of its own"
    walk = replay.walk(one.task, 1)
    walk.note_use(use("set", 5, 6, "ok"))
    after = walk("get", {})
    assert after is not None and after.result == "new"
    walk.note_use(use("get", 7, 8, "something else"))
    with pytest.raises(ReplayMissError, match="no recorded attempt began like this one"):
        walk("get", {})
