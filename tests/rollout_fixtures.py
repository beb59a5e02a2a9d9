"""A rollout over a scripted engine: real gateway, tuner, judges and isolations; only the model is a script."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.engine.contract import TokenRequest
from ajet.engine.scripted import ScriptedEngine, ScriptedReply
from ajet.environment.pinned import Pins
from ajet.gateway import Gateway
from ajet.rollout import Closed, GivenBack, Rollout, RoundEngine, attempts
from ajet.rollout.group import GroupPlay
from ajet.rollout.isolation import priority
from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.tokens import Renderer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@lru_cache(maxsize=1)
def renderer() -> Renderer:
    """ChatML over single bytes."""
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
    """What a judge of these tests is beside its verdicts."""

    def let_go(self) -> None:
        """There is nothing."""


class AnswerJudge(HoldsNothing):
    """Rewards the answer "yes"; no score for "perhaps"."""

    async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
        if isinstance(output.reward, float):
            return Verdict(output.reward, output.is_success)
        answer = output.metadata.get("answer")
        return Verdict(None if answer == "perhaps" else float(answer == "yes"), answer == "yes")


@dataclass
class Stage:
    """A rollout and what is around it."""

    rollout: Rollout
    gateway: Gateway
    engine: ScriptedEngine
    seen: list[Episode]

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


def tasks(count: int) -> list[tuple[int, Task]]:
    return [(order, Task(main_query=f"task {order}", task_id=f"t{order}")) for order in range(count)]


@contextmanager
def stage(
    workflow: type[Any],
    script: Callable[[TokenRequest], ScriptedReply | str] | Sequence[Any] | None = None,
    *,
    folder: Path | None = None,
    judge: Any = None,
    latency: float = 0.0,
    tree: dict[str, Any] | None = None,
    sections: dict[str, Any] | None = None,
    pins: Pins | None = None,
    words: Renderer | None = None,
    teacher: Any = None,
    **rollout: Any,
) -> Iterator[Stage]:
    """`rollout` are keys of that section; `tree` further ones of `ajet`; `sections` stand beside it. `words`: a
    renderer, if not `renderer()`; `teacher`: whom what is trained on is shown to."""
    settings = {"num_repeat": 2, "episode_timeout": 300, **rollout}
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priority, "YIELDS", 0)  # beside another test a worker that gives way takes half a minute to begin
        made = Rollout(
            experiment, gateway, workflow, judge, run_id="test", on_episode=seen.append, pins=pins, teacher=teacher
        )
        try:
            yield Stage(made, gateway, engine, seen)
        finally:
            made.close()
            gateway.close()


@contextmanager
def time_is_up(when: Callable[[], bool], of: Any = attempts) -> Iterator[None]:
    """An attempt that runs when this becomes true is late, as if `rollout.episode_timeout` had passed then (there must
    be one): a limit that is long enough for a busy machine would be waited for to its end. `of`: the module that waits;
    `verdicts` for a judge."""
    kept = of.first

    async def come() -> None:
        while not when():
            await asyncio.sleep(0.01)

    async def first(*futures: asyncio.Future[Any], timeout: float | None = None) -> None:
        if timeout is None:  # it waits for a slot
            await kept(*futures)
            return
        late = asyncio.ensure_future(come())
        await kept(*futures, late, timeout=timeout)
        late.cancel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, "first", first)
        yield


@contextmanager
def deadline_passes(when: Callable[[], bool]) -> Iterator[None]:
    """A group's deadline passes once this is true, after its first episode's start; there must be one."""

    async def come(group: GroupPlay) -> None:
        while not when():
            await asyncio.sleep(0.01)
        group._overdue()

    def began(group: GroupPlay) -> None:
        if not group._began:
            group._timer = asyncio.ensure_future(come(group))  # type: ignore[assignment]
        group._began = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupPlay, "began", began)
        yield


def threads(prefix: str) -> list[str]:
    """Names of the living threads that begin so."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]
