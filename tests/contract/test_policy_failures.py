"""Which failures are the policy's own doing, and what such an episode is worth: nothing, or what the person says."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ajet import Task, Workflow, WorkflowOutput, WorkflowTask
from ajet.schema.errors import EngineFailure, EnvironmentFailure, SandboxFailure, ToolFailure, UserError
from tests.support.gateways import ScriptedReply
from tests.support.rollouts import (
    credit_of,
    flows,
    judge_time_limits,
    refuse_if_all_failed,
    stage,
    time_is_up,
    tool_deadline_leaves,
)

pytestmark = pytest.mark.slow


class Parses(Workflow):
    """Raises where the reply is no number."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        return WorkflowOutput(reward=float(int(await flows.ask(tuner, "x"))))


class Grows(Workflow):
    """Asks with ever more until the context is full, and loses the client's error on the way."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await flows.ask(tuner, "x")
        try:
            await flows.ask(tuner, "x" * 20_000)
        except Exception as problem:
            raise RuntimeError("no answer") from problem
        return WorkflowOutput(reward=1.0)


class LosesNetwork(Workflow):
    """Its own tool cannot be reached."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await flows.ask(tuner, "x")
        try:
            raise ConnectionRefusedError("search engine")
        except OSError as problem:
            raise ValueError("no result") from problem


class NamesTool(Workflow):
    """Says that it was its tool."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await flows.ask(tuner, "x")
        raise ToolFailure("gone", retryable=False)


class NamesEngine(Workflow):
    """Says that it was the engine, which did nothing."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await flows.ask(tuner, "x")
        raise EngineFailure("not me", retryable=False)


class WaitsInVain(Workflow):
    """A limit of its own around its tool."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await flows.ask(tuner, "x")
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        return WorkflowOutput(reward=1.0)


class BeforeAnyWord(Workflow):
    """Breaks before the model has said anything."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        raise KeyError("mine")


@pytest.mark.parametrize("workflow", [Parses, Grows])
def test_what_the_policy_did_has_the_reward_that_was_set_and_trains(workflow: type[Any]) -> None:
    with stage(workflow, lambda _: "seven", policy_failure_reward=-0.5) as made:
        episode = made.episode()
    assert (episode.status, episode.reward, episode.scored, episode.succeeded) == ("failed", -0.5, True, False)
    assert (
        episode.failure is not None
        and episode.verdict is not None
        and "the agent's own code or the model" in episode.verdict.reason
    )
    assert sum(timeline.sampled for timeline in episode.timelines) == episode.sampled_tokens > 0
    refuse_if_all_failed([episode], 1)
    with stage(workflow, lambda _: "seven") as made:
        episode = made.episode()
    assert (episode.reward, episode.scored, episode.timelines, episode.left_out) == (None, False, [], False)
    with pytest.raises(UserError, match="All 1 episodes of step 1 failed") as refused:
        refuse_if_all_failed([episode], 1)
    is_raised_at_reply = workflow is Parses
    assert ("rollout.policy_failure_reward" in str(refused.value)) == is_raised_at_reply


@pytest.mark.parametrize(
    "workflow",
    [LosesNetwork, NamesTool, NamesEngine, WaitsInVain, BeforeAnyWord, flows.ReturnsNone, flows.Exits],
)
def test_what_others_did_never_has(workflow: type[Any]) -> None:
    with stage(workflow, policy_failure_reward=-1.0, max_retries=0) as made:
        episode = made.episode()
    assert episode.status == "failed" and episode.reward is None and not episode.timelines
    assert not episode.left_out, "what comes out of the user's code stays in the denominator"


def test_an_engines_failure_is_left_out_and_has_no_reward() -> None:
    with stage(Parses, lambda _: ScriptedReply("no", fail_after=1), policy_failure_reward=-1.0, max_retries=0) as made:
        episode = made.episode()
    assert episode.failure is not None and episode.failure.boundary == "engine"
    assert episode.left_out and episode.reward is None


def test_a_failed_episode_with_a_reward_moves_the_baseline_of_its_group() -> None:
    replies = iter(["7", "seven", "7", "7"])
    with stage(Parses, lambda _: next(replies), num_repeat=4, policy_failure_reward=0.0, max_env_worker=1) as made:
        (group,) = made.play(1)
    batch = credit_of(group)
    advantages = {episode.status: batch.outcomes[episode.uuid].advantage for episode in group.episodes}
    assert len(batch.samples) == 4 and advantages["failed"] < 0 < advantages["completed"]


def test_time_in_an_engine_call_is_the_engines() -> None:
    asked = threading.Event()

    def never(_: Any) -> ScriptedReply:
        asked.set()
        return ScriptedReply("yes", latency=3600)

    with time_is_up(asked.is_set), stage(flows.Asks, never, policy_failure_reward=-1.0) as made:
        episode = made.episode()
    assert episode.failure is not None and (episode.failure.boundary, episode.failure.kind) == ("engine", "timeout")
    assert episode.reward is None and not episode.left_out, "a timeout is no success"


@pytest.mark.parametrize(("isolation", "worth"), [("thread", -1.0), ("loop", None)])
def test_time_lost_over_an_answer_is_the_policys_where_it_is_its_own(
    isolation: str, worth: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flows.HANGS, str(tmp_path / "hangs"))
    times = [time.monotonic()]

    def most_of_it_went_to_the_hang() -> bool:
        if len(times) == 1 and (tmp_path / "hangs").exists():
            times.append(time.monotonic())
        return len(times) == 2 and time.monotonic() - times[1] > times[1] - times[0]

    with (
        time_is_up(most_of_it_went_to_the_hang),
        stage(flows.HangsAwaiting, isolation=isolation, policy_failure_reward=-1.0) as made,
    ):
        episode = made.episode()
    assert episode.failure is not None and (episode.failure.boundary, episode.failure.kind) == ("agent", "timeout")
    assert episode.reward == worth


class ToolsThatAreGone(Workflow):
    """Tells the model of what its tools raised, as agents do, and is wrong."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        for problem in task.task.metadata["raised"]:
            with suppress(Exception), tuner.tool("search", {}) as running:
                if problem is not None:
                    raise problem
                running.result = "found"
        await flows.ask(tuner, "x")
        if "then" in task.task.metadata:
            raise RuntimeError("no answer")
        return WorkflowOutput(reward=0.0)


@pytest.mark.parametrize(
    ("raised", "boundary"),
    [
        ([ConnectionResetError()], "tool"), ([TimeoutError()], "tool"), ([EnvironmentFailure("gone")], "environment"),
        ([SandboxFailure("gone")], "sandbox"), ([None, ConnectionResetError()], "tool"), ([ValueError("no")], None),
        ([ConnectionResetError(), None], None), ([ConnectionResetError(), ValueError("no")], None), ([], None),
    ],
)  # fmt: skip
def test_a_tool_that_failed_from_outside_is_nothing_that_the_model_is_trained_on(
    raised: list[Exception | None], boundary: str | None
) -> None:
    with stage(ToolsThatAreGone, max_retries=0, policy_failure_reward=-1.0) as made:
        task = Task(main_query="x", task_id="t", metadata={"raised": raised})
        (group,) = made.play_tasks([(0, task)], repeats=1)
    (episode,) = group.episodes
    assert (episode.failure.boundary if episode.failure else None) == boundary
    assert episode.reward == (0.0 if boundary is None else None) and episode.scored is (boundary is None)


def test_nor_is_what_its_agent_raised_over_it() -> None:
    with stage(ToolsThatAreGone, max_retries=0, policy_failure_reward=-1.0) as made:
        task = Task(main_query="x", task_id="t", metadata={"raised": [ConnectionResetError()], "then": True})
        (group,) = made.play_tasks([(0, task)], repeats=1)
    (episode,) = group.episodes
    assert episode.failure is not None and episode.failure.boundary == "tool" and episode.reward is None
    assert "no answer" in episode.failure.traceback


class WaitsForATool(Workflow):
    """For a tool that hangs."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        await flows.ask(tuner, "x")
        with suppress(TimeoutError, asyncio.TimeoutError):
            await tuner.tool(asyncio.sleep)(900)
        assert 0 < tuner.time_left < 300
        return WorkflowOutput(reward=0.0)


@pytest.mark.parametrize(("reserve", "limits"), [(299.5, {}), (2.0, {"tool_timeout": 0.05})])
def test_a_tool_that_hangs_ends_before_its_episode_and_has_the_blame(reserve: float, limits: dict[str, float]) -> None:
    """By what is kept back of its episode's five minutes, or by a limit of its own."""
    with tool_deadline_leaves(reserve), stage(WaitsForATool, max_retries=0, episode_timeout=300, **limits) as made:
        episode = made.episode()
    assert episode.failure is not None
    assert (episode.failure.boundary, episode.failure.kind) == ("tool", "tool_timeout")
    assert [(use.name, use.error) for use in episode.tool_uses] == [("sleep", "timeout")]


def test_the_judge_has_time_of_its_own_after_an_episodes_time() -> None:
    with judge_time_limits() as given, stage(flows.Asks, max_retries=0, episode_timeout=60) as made:
        assert made.episode().reward == 1.0
    assert given == [60.0], "all of it, however long the agent took"
