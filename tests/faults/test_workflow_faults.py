"""A step of a hundred episodes in which everything goes wrong somewhere: each fault costs its own episode only."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from ajet import Workflow, WorkflowOutput, WorkflowTask
from ajet.schema.episode import Verdict
from ajet.schema.errors import EnvironmentFailure
from tests.support.gateways import ScriptedReply
from tests.support.rollouts import (
    AnswerJudge,
    TokenRequest,
    flows,
    judge_time_is_up,
    stage,
    time_is_up,
)

pytestmark = pytest.mark.slow

FAULTS = ("fine", "raises", "hangs", "none", "silent", "exits", "engine", "world", "judge", "noscore")


class Everything(Workflow):
    """Does what its task's number says."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        fault = FAULTS[task.task_batch_index % len(FAULTS)]
        if fault == "silent":
            return WorkflowOutput(reward=1.0)
        await flows.ask(tuner, "first")
        if fault == "raises":
            raise ValueError("mine")
        if fault == "hangs":
            await asyncio.Event().wait()
        if fault == "none":
            return None  # type: ignore[return-value]
        if fault == "exits":
            raise SystemExit(1)
        if fault == "world":
            raise EnvironmentFailure("no world")
        answer = {"judge": "broken", "noscore": "perhaps"}.get(fault, "yes")
        return WorkflowOutput(metadata={"answer": answer})


class MoodyJudge(AnswerJudge):
    """Breaks where told."""

    async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
        if output.metadata["answer"] == "broken":
            raise ArithmeticError("judge's own mistake")
        return await super().verdict(workflow_task, output)


@pytest.mark.parametrize("isolation", ["thread", "loop"])
def test_each_fault_costs_its_own_episode_only(isolation: str) -> None:
    def script(request: TokenRequest) -> ScriptedReply:
        broken = FAULTS[request.key.task % len(FAULTS)] == "engine"
        return ScriptedReply("yes", fail_after=2 if broken else None)

    with (
        time_is_up(lambda: len(made.seen) == 90),  # all but those that hang
        stage(
            Everything,
            script,
            judge=MoodyJudge(),
            isolation=isolation,
            num_repeat=5,
            max_env_worker=100,
            breaker={"share": None},
        ) as made,  # what fails here fails for good: that is no outage
    ):
        groups = made.play(20)
    assert made.failures == {
        ("agent", "ValueError"): 10,
        ("agent", "timeout"): 10,
        ("agent", "returned_nothing"): 10,
        ("agent", "no_model_call"): 10,
        ("agent", "SystemExit"): 10,
        ("engine", "model_call"): 10,
        ("environment", "EnvironmentFailure"): 10,
        ("judge", "ArithmeticError"): 10,
    }
    assert made.statuses == {"failed": 80, "completed": 20} and made.retries == 20
    episodes = [episode for group in groups for episode in group.episodes]
    assert Counter(episode.reward for episode in episodes) == {1.0: 10, None: 90}
    for episode in episodes:
        trained = sum(timeline.sampled for timeline in episode.timelines)
        assert episode.sampled_tokens == trained + episode.untrained.total()
        assert bool(trained) == episode.scored
        assert not episode.failure or episode.failure.message


def test_a_late_client_finds_its_key_dead() -> None:
    """A workflow that was given up goes on calling: the model does not answer, and nothing reaches the record."""
    endpoints: list[Any] = []

    asked = threading.Event()

    class Late(Workflow):
        async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
            endpoints.append(tuner.as_oai_baseurl_apikey())
            await flows.ask(tuner, "x")
            asked.set()
            flows.RELEASE.wait()
            return WorkflowOutput(reward=1.0)

    flows.RELEASE.clear()
    import requests

    with time_is_up(asked.is_set), stage(Late) as made:
        try:
            episode = made.episode()
            before = made.requests
            reply = requests.post(
                f"{endpoints[0].base_url}/chat/completions",
                headers={"Authorization": f"Bearer {endpoints[0].api_key}"},
                json={"model": "ajet", "messages": [{"role": "user", "content": "hello?"}]},
                timeout=60,
            )
            assert reply.status_code in (401, 410) and made.requests == before
            assert len(episode.calls) == 1
        finally:
            flows.RELEASE.set()


def test_a_timeout_frees_the_engine() -> None:
    with (
        time_is_up(lambda: made.running == 1),
        stage(flows.Asks, lambda _: ScriptedReply("yes", latency=3600)) as made,
    ):
        episode = made.episode()
        assert episode.failure is not None and episode.failure.kind == "timeout"
        assert [call.finish for call in episode.calls] == ["aborted"]
        end = time.monotonic() + 60
        while made.running and time.monotonic() < end:
            time.sleep(0.01)
        assert made.running == 0


def test_a_judge_that_blocks_its_loop_does_not_hold_up_the_rollout() -> None:
    blocks = threading.Event()

    class Blocks(AnswerJudge):
        async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
            blocks.set()
            flows.RELEASE.wait()
            return Verdict(1.0)

    flows.RELEASE.clear()
    with judge_time_is_up(blocks.is_set), stage(flows.Asks, judge=Blocks()) as made:
        try:
            episode = made.episode()  # ends while the judge blocks: it is let go of below
            assert episode.failure is not None and episode.failure.boundary == "judge"
        finally:
            flows.RELEASE.set()
