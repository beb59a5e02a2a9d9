"""What a rollout promises: groups, limits, retries, deadlines, oversampling, checks, determinism, accounting."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from ajet import Workflow, WorkflowOutput, WorkflowTask
from ajet.schema.call import prompt_ids
from ajet.schema.episode import Episode, Verdict
from ajet.schema.errors import EngineFailure, EnvironmentFailure, JudgeFailure
from tests.support.gateways import Renderer, ScriptedEngine, ScriptedReply
from tests.support.rollouts import (
    AnswerJudge,
    Closed,
    DrawKey,
    GivenBack,
    HoldsNothing,
    TokenRequest,
    ask_for_round,
    attempts_start_at,
    deadline_passes,
    flows,
    judge_time_is_up,
    published_tokenizer,
    renderer,
    stage,
    tasks,
)

pytestmark = pytest.mark.slow


def accounted(episode: Episode) -> bool:
    kept = sum(timeline.sampled for timeline in episode.timelines)
    return episode.sampled_tokens == kept + episode.untrained.total()


def test_every_repeat_of_every_task_becomes_one_episode() -> None:
    with stage(flows.Asks, num_repeat=3, max_env_worker=4) as made:
        groups = made.play(5)
        assert sorted(group.order for group in groups) == [0, 1, 2, 3, 4]
        assert [episode.repeat for group in groups for episode in group.episodes] == [0, 1, 2] * 5
        episodes = [episode for group in groups for episode in group.episodes]
        assert len({episode.uuid for episode in episodes}) == 15
        assert {episode.uuid for episode in made.seen} == {episode.uuid for episode in episodes}
        assert all(accounted(episode) and episode.run == "test" and episode.step == 1 for episode in episodes)
        again = {episode.uuid for group in made.play(5) for episode in group.episodes}
        assert again == {episode.uuid for episode in episodes}
        assert made.statuses == {"completed": 30}


def test_no_more_than_max_env_worker_run_at_a_time() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    class Counts(Workflow):
        async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            while most < 3:  # so many may: they come
                await asyncio.sleep(0.001)
            await flows.ask(tuner, "x")
            with lock:
                running -= 1
            return WorkflowOutput(reward=1.0)

    with stage(Counts, max_env_worker=3, num_repeat=4, latency=0.01) as made:
        made.play(4)
    assert most == 3


def test_what_a_workflow_sees() -> None:
    seen: list[WorkflowTask] = []

    class Looks(Workflow):
        async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
            assert tuner.config.ajet.rollout.num_repeat == 2
            seen.append(task)
            return WorkflowOutput(reward=1.0, metadata={"answer": await flows.ask(tuner, "x")})

    with stage(Looks) as made:
        groups = made.play(2)
    named = {(task.task_batch_index, task.task_thread_index): task for task in seen}
    assert sorted(named) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert named[1, 1].task_tag == "Tt1#R1" and named[1, 1].task.main_query == "task 1"
    assert named[1, 1].episode_uuid == next(g for g in groups if g.order == 1).episodes[1].uuid


@pytest.mark.parametrize(("split", "repeats"), [("train", 2), ("validation", 3), ("debug", 2)])
def test_each_split_has_its_own_repeats_and_sampling(split: str, repeats: int) -> None:
    asked: list[TokenRequest] = []

    def script(request: TokenRequest) -> str:
        asked.append(request)
        return "yes"

    val = {"num_repeat": 3, "temperature": 0.5}
    with stage(flows.Asks, script, val_kwargs=val, temperature=0.7) as made:
        (group,) = made.play(1, split=split)
    assert len(group.episodes) == repeats
    assert {request.sampling.temperature for request in asked} == {0.0 if split == "validation" else 0.7}
    assert sorted(request.key for request in asked) == [DrawKey(0, 0, repeat, 0) for repeat in range(repeats)]


def test_a_date_in_prompts_is_that_of_the_episodes_start() -> None:
    """As the proof has it, whenever its session was opened: its world, or its process, may have come after midnight."""
    words, then = Renderer(published_tokenizer("llama3.2")), datetime(2024, 5, 6, 23, 59)
    with attempts_start_at(then), stage(flows.Asks, words=words) as made:
        episode = made.episode()
    assert episode.started == then.timestamp() and "06 May 2024" in words.decode(prompt_ids(episode.calls, 0))


def test_one_failed_episode_leaves_the_others() -> None:
    with stage(flows.RaisesOnOdd, num_repeat=4) as made:
        (group,) = made.play(1)
        assert made.failures == {("agent", "ValueError"): 2}
    assert [episode.status for episode in group.episodes] == ["completed", "failed"] * 2
    assert [episode.repeat for episode in group.scored] == [0, 2]
    for episode in group.episodes[1::2]:
        assert episode.untrained == {"failed": episode.sampled_tokens} and episode.sampled_tokens > 0


def test_no_score_is_not_zero() -> None:
    with stage(flows.Asks, lambda _: "perhaps") as made:
        episode = made.episode()
    assert (episode.status, episode.scored, episode.reward) == ("completed", False, None)
    assert episode.untrained == {"no_score": episode.sampled_tokens}


# retries


def failing(times: int) -> Any:
    count = 0

    def script(request: TokenRequest) -> ScriptedReply:
        nonlocal count
        count += 1
        return ScriptedReply("no good", fail_after=3 if count <= times else None)

    return script


class AsksOnce(flows.Workflow):
    """One attempt at a call: the SDK's own retries are off."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client().with_options(max_retries=0)
        reply = await client.chat.completions.create(messages=[{"role": "user", "content": "x"}])
        return WorkflowOutput(metadata={"answer": reply.choices[0].message.content})


def test_a_failed_engine_is_asked_again_with_the_same_key() -> None:
    with stage(AsksOnce, failing(1), max_retries=2) as made:
        episode = made.episode()
        assert made.retries == 1
    assert (episode.status, episode.attempts, len(episode.calls)) == ("completed", 2, 1)
    assert episode.repeat == 0 and episode.untrained.total() == 0


def test_retries_come_to_an_end() -> None:
    with stage(AsksOnce, failing(9), max_retries=1) as made:
        episode = made.episode()
    assert episode.failure is not None
    assert (episode.failure.boundary, episode.failure.retryable, episode.attempts) == ("engine", True, 2)
    assert "after 3 tokens" in episode.failure.message
    assert accounted(episode) and episode.untrained == {"aborted_call": 3}


def test_an_engine_failure_that_the_workflow_swallows_is_no_outcome() -> None:
    class Swallows(Workflow):
        async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
            try:
                await AsksOnce().execute(task, tuner)
            except Exception:  # noqa: BLE001 - as users write it
                return WorkflowOutput(reward=0.0)
            return WorkflowOutput(reward=1.0)

    with stage(Swallows, failing(9), max_retries=0) as made:
        episode = made.episode()
    assert episode.reward is None and episode.failure is not None and episode.failure.boundary == "engine"


def test_a_boundary_error_names_its_own_side() -> None:
    class Wraps(Workflow):
        async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
            await flows.ask(tuner, "x")
            try:
                raise EnvironmentFailure("the world is gone")
            except EnvironmentFailure as gone:
                raise RuntimeError("agent loop failed") from gone

    with stage(Wraps, max_retries=1) as made:
        episode = made.episode()
    assert episode.failure is not None
    assert (episode.failure.boundary, episode.failure.kind) == ("environment", "EnvironmentFailure")
    assert episode.attempts == 2


# judges


class FailingJudge(HoldsNothing):
    """Fails as told."""

    def __init__(self, problem: Exception, times: int) -> None:
        self._problem, self.left = problem, times

    async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
        if self.left:
            self.left -= 1
            raise self._problem
        return Verdict(1.0)


@pytest.mark.parametrize("problem", [JudgeFailure("no number"), KeyError("answer")])
def test_a_judge_that_raises_fails_its_episode(problem: Exception) -> None:
    with stage(flows.Asks, judge=FailingJudge(problem, 1)) as made:
        (group,) = made.play(1)
    failed, fine = sorted(group.episodes, key=lambda episode: episode.scored)
    assert failed.failure is not None and failed.failure.boundary == "judge" and fine.reward == 1.0
    assert failed.metadata["answer"] == "yes"
    assert failed.untrained == {"failed": failed.sampled_tokens}


def test_a_judge_may_ask_to_be_asked_again() -> None:
    with stage(flows.Asks, judge=FailingJudge(JudgeFailure("busy", retryable=True), 1), max_retries=1) as made:
        episode = made.episode()
    assert (episode.reward, episode.attempts) == (1.0, 1)


def test_a_judge_that_hangs_is_timed_out() -> None:
    asked = threading.Event()

    class Hangs(HoldsNothing):
        async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
            asked.set()
            await asyncio.Event().wait()
            return Verdict(1.0)

    with judge_time_is_up(asked.is_set), stage(flows.Asks, judge=Hangs()) as made:
        episode = made.episode()
    assert episode.failure is not None and (episode.failure.boundary, episode.failure.kind) == ("judge", "timeout")


# groups that close early


class WaitsUnlessFirst(Workflow):
    """Repeats 0 and 1 answer; the others wait to be aborted."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        answer = await flows.ask(tuner, "x")
        if task.task_thread_index > 1:
            await asyncio.Event().wait()
        return WorkflowOutput(metadata={"answer": answer})


def test_a_group_closes_at_its_deadline_with_k_of_n() -> None:
    late = deadline_passes(lambda: len(made.seen) == 2 and made.requests == 4)
    with late, stage(WaitsUnlessFirst, num_repeat=4, group_deadline=600, min_group=2) as made:
        (group,) = made.play(1)
    assert [episode.status for episode in group.episodes] == ["completed", "completed", "aborted", "aborted"]
    assert len(group.scored) == 2
    for episode in group.episodes[2:]:
        assert episode.ending == "group_deadline" and accounted(episode) and not episode.timelines


def test_a_group_waits_for_min_group_after_its_deadline() -> None:
    let = threading.Event()

    class Late(Workflow):
        async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
            answer = await flows.ask(tuner, "x")
            if task.task_thread_index == 1:
                while not let.is_set():
                    await asyncio.sleep(0.01)
            elif task.task_thread_index == 2:
                await asyncio.Event().wait()
            return WorkflowOutput(metadata={"answer": answer})

    with stage(Late, num_repeat=3, group_deadline=0.3, min_group=2) as made:
        threading.Timer(1.0, let.set).start()
        (group,) = made.play(1)
    assert [episode.status for episode in group.episodes] == ["completed", "completed", "aborted"]


def test_episodes_that_wait_for_a_slot_are_aborted_with_their_group() -> None:
    late = deadline_passes(lambda: len(made.seen) == 2 and made.requests == 5)
    with late, stage(WaitsUnlessFirst, num_repeat=6, group_deadline=600, min_group=2, max_env_worker=3) as made:
        (group,) = made.play(1)
    assert [episode.attempts for episode in group.episodes] == [1, 1, 1, 1, 1, 0]
    assert [episode.status for episode in group.episodes[2:]] == ["aborted"] * 4


# oversampling


def by_task(*answers: str) -> Any:
    """The script that answers task by task: a word for all repeats, or "mixed"."""

    def script(request: TokenRequest) -> ScriptedReply | str:
        answer = answers[request.key.task]
        if answer == "mixed":
            return "yes" if request.key.repeat % 2 else "no"
        return ScriptedReply("yes", latency=3600) if answer == "slow" else answer

    return script


def test_oversampling_keeps_the_first_useful_groups() -> None:
    script = by_task("yes", "mixed", "slow", "mixed", "slow")
    tree = {"data": {"train_batch_size": 2}}
    with stage(flows.Asks, script, tree=tree, enable_oversample=True) as made:
        ended = made.stream(5)
    kept, other, given_back = sorted_ends(ended)
    assert sorted(kept) == [1, 3] and sorted(kept + other + given_back) == [0, 1, 2, 3, 4]
    assert {2, 4} <= {*given_back} <= {0, 2, 4}
    assert {each.why for each in ended if isinstance(each, GivenBack)} == {"enough_groups"}


def sorted_ends(ended: Sequence[Closed | GivenBack]) -> tuple[list[int], list[int], list[int]]:
    """Orders of the groups that were kept, of the others, and of what was given back."""
    groups = [(each.group.order, each.is_selected) for each in ended if isinstance(each, Closed)]
    given_back = [each.order for each in ended if isinstance(each, GivenBack)]
    return [order for order, kept in groups if kept], [order for order, kept in groups if not kept], given_back


def test_groups_without_variance_fill_up() -> None:
    script = by_task("yes", "mixed", "no")
    with stage(flows.Asks, script, tree={"data": {"train_batch_size": 2}}, enable_oversample=True) as made:
        assert sorted_ends(made.stream(3)) == ([1, 0], [2], [])
        assert len(made.play(3, split="validation", repeats=1)) == 3


@pytest.mark.parametrize(("algorithm", "kept"), [("reinforce_plus_plus", [0]), ("grpo", [1])])
def test_the_algorithm_says_what_is_useful(algorithm, kept):
    """The only attempt with a score is compared with the batch, or with nobody."""
    tree = {"data": {"train_batch_size": 1}, "trainer_common": {"algorithm": {"adv_estimator": algorithm}}}

    def script(request: TokenRequest) -> str:
        return ["perhaps" if request.key.repeat else "yes", "no" if request.key.repeat else "yes"][request.key.task]

    with stage(flows.Asks, script, tree=tree, enable_oversample=True, max_env_worker=1) as made:
        assert [group.order for group in made.play(2)] == kept


def test_a_group_that_nobody_wants_any_more_ends_and_no_other() -> None:
    """At once too: before it was even made."""
    with stage(flows.HangsAwaiting, num_repeat=2, max_env_worker=8) as made:
        unwanted, wanted, at_once = (made.start_group(order, task, repeats=2) for order, task in tasks(3))
        made.stop_group(at_once)
        made.stop_group(unwanted)
        for stopped in (unwanted, at_once):
            assert [episode.status for episode in stopped.result(60).episodes] == ["aborted"] * 2
        assert not wanted.done()
        made.stop_group(unwanted)  # over: nothing is left to end


# checks


def test_a_check_that_fires_ends_the_episode_with_its_reward() -> None:
    said = iter(["hello", "ha " * 200, "never"])

    class Goes(Workflow):
        async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
            for _ in range(3):
                await flows.ask(tuner, "x")
            return WorkflowOutput(reward=1.0)

    with stage(Goes, lambda _: next(said)) as made:
        episode = made.episode()
    assert (episode.status, episode.reward, episode.checks) == ("completed", -1.0, ["nonsense:loop"])
    assert episode.verdict is not None and "nonsense:loop" in episode.verdict.reason
    assert len(episode.calls) == 2 and episode.scored and accounted(episode)
    assert sum(timeline.sampled for timeline in episode.timelines) == episode.sampled_tokens


def test_without_termination_the_episode_goes_on_and_is_punished() -> None:
    more: dict[str, Any] = {"agent_madness_termination": False, "agent_madness_reward": -3}
    with stage(flows.Converses, lambda _: "ha " * 200, **more) as made:
        episode = made.episode()
    assert (len(episode.calls), episode.reward, episode.status) == (5, -3.0, "completed")


def test_no_checks() -> None:
    with stage(flows.Asks, lambda _: "ha " * 200, compute_madness_checklist=[]) as made:
        episode = made.episode()
    assert (episode.reward, episode.checks) == (0.0, [])


# limits of what is trained


def test_timelines_are_limited_and_counted() -> None:
    class Forks(Workflow):
        async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
            for number in range(4):
                await flows.ask(tuner, f"question {number}")
            return WorkflowOutput(reward=1.0)

    with stage(Forks, multi_turn={"max_sample_per_task": 3}) as made:
        first = made.episode()
        second = made.episode()
    assert len(first.timelines) == 3 and first.untrained["max_sample_per_task"] > 0 and accounted(first)
    assert [timeline.leaf for timeline in first.timelines] == [timeline.leaf for timeline in second.timelines]

    with stage(
        flows.Converses, lambda _: "x" * 50, tree={"data": {"max_prompt_length": 90, "max_response_length": 60}}
    ) as made:
        long = made.episode()
    assert long.untrained["over_length"] > 0 and accounted(long)
    assert all(timeline.ids.size <= 150 for timeline in long.timelines)


def test_a_conversation_becomes_one_timeline() -> None:
    with stage(flows.Converses) as made:
        episode = made.episode()
    assert len(episode.calls) == 5 and len(episode.timelines) == 1 and episode.untrained.total() == 0


# interruption


def test_leaving_the_iteration_aborts_what_runs() -> None:
    with stage(flows.Asks, by_task("yes", "slow", "slow"), num_repeat=1) as made:
        for group in made.play_tasks(tasks(3), step=0):
            assert group.order == 0
            break
        assert made.running == 0 and made.closed_early <= 2


def test_an_exception_of_the_caller_goes_through() -> None:
    with stage(flows.Asks, by_task("yes", "slow"), num_repeat=1) as made:
        with pytest.raises(KeyboardInterrupt):
            for _ in made.play_tasks(tasks(2), step=0):
                raise KeyboardInterrupt
        assert made.running == 0


def test_close_from_another_thread_ends_a_play() -> None:
    started = threading.Event()

    def script(request: TokenRequest) -> ScriptedReply:
        started.set()
        return ScriptedReply("yes", latency=3600)

    with stage(flows.Asks, script) as made:
        closer = threading.Thread(target=lambda: (started.wait(), made.close()))
        closer.start()
        assert sorted_ends(made.stream(1)) == ([], [], [0])
        closer.join()
        assert made.statuses == {"aborted": 2}
        with pytest.raises(RuntimeError, match="closed"):
            made.play(1)


def test_a_closed_engine_fails_the_episodes_only() -> None:
    with stage(AsksOnce, max_retries=0) as made:
        made.close_engine()
        episode = made.episode()
    assert episode.failure is not None and episode.failure.boundary == "engine"


# determinism


class Jitters(Workflow):
    """Three turns at moments of its own."""

    async def execute(self, task: WorkflowTask, tuner: Any) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        messages: list[dict[str, Any]] = [{"role": "user", "content": task.task.main_query}]
        for _ in range(1 + int(task.task.task_id[1:]) % 3):
            await asyncio.sleep(random.random() / 50)
            reply = await client.chat.completions.create(messages=messages)
            messages += [{"role": "assistant", "content": reply.choices[0].message.content}]
            messages += [{"role": "user", "content": "more"}]
        return WorkflowOutput(reward=1.0)


def rounds(workers: int) -> tuple[list[list[tuple[int, int, int]]], list[int]]:
    with stage(Jitters, deterministic=True, max_env_worker=workers, num_repeat=2) as made:
        groups = made.play(5)
        return made.rounds, [group.order for group in groups]


@pytest.mark.parametrize("workers", [3, 64])
def test_rounds_do_not_depend_on_timing(workers: int) -> None:
    first, orders = rounds(workers)
    assert orders == [0, 1, 2, 3, 4]
    assert all(one == sorted(one) and len(one) <= workers for one in first)
    assert sum(map(len, first)) == 2 * (1 + 2 + 3 + 1 + 2)
    for _ in range(3):
        assert rounds(workers) == (first, orders)


def test_a_round_reaches_the_engine_as_one() -> None:
    arrivals: list[list[tuple[int, int, int]]] = []

    class Holds(ScriptedEngine):
        holding = False

        @contextmanager
        def held(self) -> Iterator[None]:
            assert not self.holding
            self.holding = True
            arrivals.append([])
            yield
            self.holding = False

        async def generate(self, request: TokenRequest) -> Any:
            assert self.holding
            arrivals[-1].append((request.key.task, request.key.repeat, request.key.call))
            async for chunk in super().generate(request):
                yield chunk

    with stage(Jitters, deterministic=True, num_repeat=2) as made:
        words = renderer()
        made.replace_engine(Holds(lambda _: "yes", encode=words.encode, end_id=words.end_ids[0]))
        made.play(5)
        assert arrivals == made.rounds and len(arrivals) == 3


def test_a_closed_engine_refuses_those_who_wait_for_a_round() -> None:
    with pytest.raises(EngineFailure, match="closed"):
        asyncio.run(ask_for_round(of=2, closed_after=0.05))


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    flows.RELEASE.clear()
    yield
    flows.RELEASE.set()


def test_judges_see_the_task_and_the_output() -> None:
    class Sees(AnswerJudge):
        async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
            assert workflow_task.task.task_id == "t0" and output.metadata["answer"] == "yes"
            return Verdict(0.5, True, "seen")

    with stage(flows.Asks, judge=Sees()) as made:
        episode = made.episode()
    assert episode.verdict == Verdict(0.5, True, "seen")


def test_a_play_collects_garbage_rarely_and_then_as_before() -> None:
    import gc

    before = gc.get_threshold()
    with stage(flows.Asks, num_repeat=1) as made:
        for _ in made.play_tasks(tasks(2), step=0):
            assert gc.get_threshold() > before
    assert gc.get_threshold() == before
