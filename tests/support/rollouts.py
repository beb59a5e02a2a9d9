"""Play groups of tasks through a rollout over a scripted engine: gateway, tuner, judges and isolations are real.

Tests of rollouts use `stage`, `Stage` and the faults below, which are named by what goes wrong. Among the gates and
their helpers only this module names internals of `ajet.rollout`, `ajet.gateway`, `ajet.engine` and
`ajet.workflow`; a redesign of those packages changes this module and no gate.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ajet.algorithm import assign_credit
from ajet.algorithm.contract import count_sampled_tokens as count_length
from ajet.config import Experiment, resolve_reference
from ajet.config.schema import AjetConfig
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.scripted import ScriptedEngine, ScriptedReply
from ajet.environment.pinned import ToolPins
from ajet.gateway import Gateway
from ajet.rollout import ClosedGroup as Closed
from ajet.rollout import ReturnedTask as GivenBack
from ajet.rollout import Rollout, RoundEngine, attempt_runner, breaker, episode_player, judge_caller
from ajet.rollout.breaker import Breaker
from ajet.rollout.failure import refuse_if_all_failed
from ajet.rollout.group import InflightGroup
from ajet.rollout.isolation import worker_process
from ajet.schema.batch import TrainingBatch
from ajet.schema.episode import Episode, Failure, Group, Verdict
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import Judge
from ajet.tokens import Renderer
from ajet.train.accounting import episode_metrics
from ajet.workflow import resources
from ajet.workflow.function import workflow_from
from tests.support import rollout_workflows as flows
from tests.support.published_templates import family as published_tokenizer

__all__ = [
    "AnswerJudge",
    "Closed",
    "DrawKey",
    "GivenBack",
    "HoldsNothing",
    "Judge",
    "Stage",
    "TokenRequest",
    "ask_for_round",
    "attempts_start_at",
    "cancelled_attempts_have_time",
    "count_length",
    "credit_of",
    "deadline_passes",
    "flows",
    "group_ends_during_retry_pause",
    "judge_time_is_up",
    "judge_time_limits",
    "metrics_of",
    "outages_pause",
    "published_tokenizer",
    "refuse_if_all_failed",
    "renderer",
    "stage",
    "stuck_stack_probe",
    "tasks",
    "threads",
    "time_is_up",
    "tool_deadline_leaves",
    "workers_start_at_once",
]

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@lru_cache(maxsize=1)
def renderer() -> Renderer:
    """Return a renderer of ChatML over single bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_.decoder = decoders.ByteLevel()
    bytes_.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_, eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return Renderer(tokenizer)


class HoldsNothing:
    """A judge that opened nothing."""

    def let_go(self) -> None:
        """Close nothing."""


class AnswerJudge(HoldsNothing):
    """Rewards the answer "yes"; no score for "perhaps"."""

    async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
        if isinstance(output.reward, float):
            return Verdict(output.reward, output.is_success)
        answer = output.metadata.get("answer")
        return Verdict(None if answer == "perhaps" else float(answer == "yes"), answer == "yes")


@dataclass
class Stage:
    """A rollout and what is around it.

    Gates use the methods and properties, and `seen`; they do not touch `rollout`, `gateway` and `engine`."""

    rollout: Rollout
    gateway: Gateway
    engine: ScriptedEngine
    seen: list[Episode]
    """Episodes in the order in which they ended."""

    def play(self, count: int = 1, *, split: Any = "train", **more: Any) -> list[Group]:
        """All groups of `count` tasks."""
        return list(self.rollout.play(tasks(count), step=1, split=split, **more))

    def stream(self, count: int, **more: Any) -> list[Closed | GivenBack]:
        """How each of `count` tasks ended."""
        return list(self.rollout.stream(tasks(count), step=1, split="train", **more))

    def episode(self) -> Episode:
        """The only episode of one task."""
        (group,) = self.play(repeats=1)
        (episode,) = group.episodes
        return episode

    def play_tasks(self, chosen: Sequence[tuple[int, Task]], *, step: int = 1, **more: Any) -> Iterator[Group]:
        """Yield the groups of (order, task) as they end; leaving the iteration aborts what runs."""
        return iter(self.rollout.play(chosen, step=step, split="train", **more))

    def start_group(self, order: int, task: Task, *, repeats: int) -> Future[Group]:
        """Play one group by itself, as the workers of verl do."""
        return self.rollout.play_group(order, task, step=1, split="train", repeats=repeats)

    def stop_group(self, group: Future[Group]) -> None:
        """End a group that nobody wants any more."""
        self.rollout.stop_group(group)

    def close(self) -> None:
        """End the rollout, from any thread."""
        self.rollout.close()

    def close_engine(self) -> None:
        """End the engine under the rollout."""
        self.engine.close()

    @property
    def requests(self) -> int:
        """Requests that the engine has had."""
        return self.engine.requests

    @property
    def running(self) -> int:
        """Requests that the engine works at."""
        return self.engine.running

    @property
    def closed_early(self) -> int:
        """Requests that were given up before their reply had ended."""
        return self.engine.closed_early

    @property
    def rounds(self) -> list[list[tuple[int, int, int]]]:
        """(task, repeat, call) of each round of a deterministic rollout."""
        inner: Any = self.gateway.engine
        return [list(each) for each in inner.rounds]

    def replace_engine(self, engine: ScriptedEngine) -> None:
        """Have a deterministic rollout ask another engine."""
        inner: Any = self.gateway.engine
        inner._engine = engine

    @property
    def abandoned(self) -> int:
        """Attempts that were given up and whose code still runs."""
        return self.rollout.abandoned_count

    @property
    def is_paused(self) -> bool:
        """True while the breaker is open."""
        return self.rollout.breaker.is_open

    @property
    def failures(self) -> Counter[tuple[str, str]]:
        """Failed episodes by (boundary, kind)."""
        return Counter((each.failure.boundary, each.failure.kind) for each in self.seen if each.failure)

    @property
    def statuses(self) -> Counter[str]:
        """Episodes by status."""
        return Counter(each.status for each in self.seen)

    @property
    def retries(self) -> int:
        """Attempts that were made again."""
        return sum(each.attempts - 1 for each in self.seen)


def tasks(count: int) -> list[tuple[int, Task]]:
    """Return so many tasks with their orders."""
    return [(order, Task(main_query=f"task {order}", task_id=f"t{order}")) for order in range(count)]


@contextmanager
def stage(
    workflow: Any,
    script: Callable[[TokenRequest], ScriptedReply | str] | Sequence[Any] | None = None,
    *,
    folder: Path | None = None,
    judge: Any = None,
    latency: float = 0.0,
    tree: dict[str, Any] | None = None,
    sections: dict[str, Any] | None = None,
    pins: ToolPins | None = None,
    words: Renderer | None = None,
    teacher: Any = None,
    **rollout: Any,
) -> Iterator[Stage]:
    """Run a rollout over a scripted engine.

    Args:
        workflow: A class, a function (referred to by `user_workflow`, or its module), or a reference below `folder`.
        tree: Further keys of `ajet`.
        sections: Sections beside `ajet`.
        words: A renderer, if not `renderer()`.
        teacher: The model that sees what is trained on.
        rollout: Keys of the section `rollout`.
    """
    settings = {"num_repeat": 2, "episode_timeout": 300, **rollout}
    if isinstance(workflow, str):
        settings["user_workflow"] = workflow
        workflow = resolve_reference(workflow, base=folder or Path.cwd())
    elif not isinstance(workflow, type):
        reference = settings.get("user_workflow") or f"{workflow.__module__}->{workflow.__name__}"
        workflow = workflow_from(workflow, reference)
    if settings.get("isolation") == "loops":
        settings = {"processes": 1, **settings}  # each takes a second of CPU to start
    whole = {**(sections or {}), "ajet": {**(tree or {}), "rollout": settings}}
    experiment = Experiment.from_dict(whole, base=folder or Path.cwd())
    words = words or renderer()
    engine = ScriptedEngine(
        script if script is not None else lambda _: "yes", encode=words.encode, end_id=words.end_ids[0], latency=latency
    )
    inner: Any = RoundEngine(engine) if experiment.ajet.rollout.deterministic else engine
    gateway = Gateway(inner, words, max_model_len=18000, max_response_tokens=4096).start()
    seen: list[Episode] = []
    judge = judge or AnswerJudge()
    with workers_start_at_once():
        made = Rollout(
            experiment, gateway, workflow, judge, run_id="test", on_episode=seen.append, pins=pins, teacher=teacher
        )
        try:
            yield Stage(made, gateway, engine, seen)
        finally:
            made.close()
            gateway.close()


async def ask_for_round(*, of: int, closed_after: float) -> None:
    """Request a reply in a round of `of` requests; close the engine after `closed_after` seconds."""
    engine = RoundEngine(ScriptedEngine([[1]]))
    engine.expect(of)
    request = TokenRequest(np.zeros(1, np.int32), Sampling(4), DrawKey(0, 0, 0, 0))
    asyncio.get_running_loop().call_later(closed_after, engine.close)
    async for _ in engine.generate(request):
        pass


@contextmanager
def workers_start_at_once() -> Iterator[None]:
    """Within the block worker processes start at normal priority: at a low one a busy machine takes half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "NICE_STEPS", 0)
        yield


@contextmanager
def time_is_up(when: Callable[[], bool], of: Any = attempt_runner) -> Iterator[None]:
    """Within the block an attempt that runs when this becomes true is late.

    It is as if `rollout.episode_timeout` had passed then (one must be set): a limit that is long enough for a busy
    machine would be waited for to its end.

    Args:
        of: The module that waits.
    """
    kept = of.wait_first

    async def come() -> None:
        while not when():
            await asyncio.sleep(0.01)

    async def wait_first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
        if timeout is None:  # it waits for a slot
            await kept(*futures)
            return
        late = asyncio.ensure_future(come())
        await kept(*futures, late, timeout=timeout)
        late.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, "wait_first", wait_first)
        yield


def credit_of(*groups: Group) -> TrainingBatch:
    """Return the batch of the first step of a training with the default settings."""
    return assign_credit(list(groups), AjetConfig(), step=1)


def metrics_of(*episodes: Episode) -> dict[str, Any]:
    """Return the metrics of a step with these episodes, by name."""
    return episode_metrics(list(episodes), "train")


def judge_time_is_up(when: Callable[[], bool]) -> Any:
    """Within the block a judge that is asked when this becomes true is late."""
    return time_is_up(when, judge_caller)


@contextmanager
def judge_time_limits() -> Iterator[list[float | None]]:
    """Yield the list of the seconds that judges are given, one for each verdict."""
    limits, kept = list[float | None](), judge_caller.wait_first

    async def wait_first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
        limits.append(timeout)
        await kept(*futures, timeout=timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge_caller, "wait_first", wait_first)
        yield limits


@contextmanager
def tool_deadline_leaves(seconds: float) -> Iterator[None]:
    """Within the block tools leave so many seconds of an episode's time, however long it may take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "RESERVE", 1.0)
        patch.setattr(resources, "MOST_RESERVED_S", seconds)
        yield


@contextmanager
def cancelled_attempts_have_time() -> Iterator[None]:
    """Within the block a cancelled attempt may take a minute to close what it opened."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_runner, "HANG_TIMEOUT_S", 60.0)
        yield


@contextmanager
def attempts_start_at(moment: datetime) -> Iterator[None]:
    """Within the block the clock of attempts stands still at this moment."""
    stands = SimpleNamespace(time=moment.timestamp, monotonic=time.monotonic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_runner, "time", stands)
        yield


@contextmanager
def stuck_stack_probe(made: Stage, answer: str) -> Iterator[None]:
    """Within the block a process says that its attempt stands at `answer`, or "" if the rollout's loop stood still."""
    isolation, went_on = made.rollout.attempts.isolation, threading.Event()

    def locate(_: Any) -> str:
        made.rollout.loop.call_soon_threadsafe(went_on.set)
        return answer if went_on.wait(10) else ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "is_remote", True)
        patch.setattr(isolation, "locate", locate)
        yield


@contextmanager
def outages_pause(seconds: float, on_lost: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within the block the first probe of an outage waits so long, a later one at most 2.5 times as long.

    Args:
        on_lost: Called once the breaker knows of an attempt that was lost to an outage.
    """
    ended = Breaker.report_end

    def counted(self: Breaker, failure: Failure | None, **more: Any) -> None:
        ended(self, failure, **more)
        if breaker.is_lost(failure):
            on_lost()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(breaker, "FIRST_PAUSE", seconds)
        patch.setattr(breaker, "LONGEST_PAUSE", 2.5 * seconds)
        patch.setattr(Breaker, "report_end", counted)
        yield


@contextmanager
def group_ends_during_retry_pause() -> Iterator[None]:
    """Within the block a group's deadline passes while a failed attempt pauses before the next."""
    pauses = threading.Event()

    async def wait_first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
        if timeout == 3600.0:
            pauses.set()
        await judge_caller.wait_first(*futures, timeout=timeout)

    with pytest.MonkeyPatch.context() as patch, deadline_passes(pauses.is_set):
        patch.setattr(episode_player, "RETRY_PAUSE", 3600.0)
        patch.setattr(episode_player, "wait_first", wait_first)
        yield


@contextmanager
def deadline_passes(when: Callable[[], bool]) -> Iterator[None]:
    """Within the block a group's deadline (one must be set) passes when this becomes true."""

    async def come(group: InflightGroup) -> None:
        while not when():
            await asyncio.sleep(0.01)
        group.pass_deadline()

    def began(group: InflightGroup) -> None:
        if not group.has_started:
            group.timer = asyncio.ensure_future(come(group))  # type: ignore[assignment]
        group.has_started = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InflightGroup, "note_start", began)
        yield


def threads(prefix: str) -> list[str]:
    """Return the names of living threads that begin with `prefix`."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]
