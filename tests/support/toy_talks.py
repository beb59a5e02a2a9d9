"""A tiny model that plays attempts of several turns token by token and learns from them, without text: for tests of
what credit teaches. Ids, calls, timelines and parts are made as in a run (gateway, tracker, rewards tied to tokens).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ajet.algorithm import assign_credit
from ajet.backbone.local.trainer import Trainer
from ajet.config.schema.experiment import AjetConfig
from ajet.context_tracker import timelines
from ajet.engine.contract import DrawKey, Sampling, TokenRequest
from ajet.engine.transformers import TransformersEngine
from ajet.gateway import Capture
from ajet.rollout.process_rewards import locate_rewards
from ajet.schema.batch import TrainingBatch
from ajet.schema.call import Call, VersionRun, full_ids
from ajet.schema.episode import Episode, Group, Verdict
from ajet.schema.process_reward import ProcessReward
from ajet.schema.task import Task
from tests.support.local_fixtures import tiny_qwen3


@dataclass
class Talk:
    """One attempt: `say` shows an agent some tokens and answers what the policy replies."""

    learner: Learner
    task: Task
    key: tuple[int, int, int]
    calls: list[Call] = field(default_factory=list)

    async def say(self, shown: Sequence[int], *, agent: str = "a", most: int = 1, stop: tuple[int, ...] = ()) -> Any:
        """[T] the ids of the reply. An agent goes on from its own last call."""
        parent = next((call.index for call in reversed(self.calls) if call.agent == agent), None)
        before = full_ids(self.calls, parent) if parent is not None else np.zeros(0, np.int32)
        suffix = np.asarray(shown, np.int32)
        key = DrawKey(*self.key, len(self.calls))
        request = TokenRequest(np.concatenate([before, suffix]), Sampling(most, stop_ids=stop), key)
        chunks = [chunk async for chunk in self.learner.engine.generate(request)]
        ids = np.asarray([id for chunk in chunks for id in chunk.ids], np.int32)
        logprobs = np.asarray([value for chunk in chunks for value in chunk.logprobs], np.float32)
        versions = (VersionRun(0, self.learner.engine.version, self.learner.engine.version),)
        index = len(self.calls)
        told: tuple[Any, ...] = (logprobs, logprobs, versions, "stop", (), None, None)
        self.calls.append(Call(index, agent, agent, True, parent, before.size, suffix, ids, *told))
        return ids.tolist()

    def ended(self, reward: float, *parts: ProcessReward) -> Episode:
        """The attempt as an episode, rewards of parts tied to their tokens."""
        verdict = locate_rewards(Verdict(reward, process=parts), Capture(calls=self.calls, messages=[]), lambda ids: "")
        step, _, repeat = self.key
        lines, _ = timelines(self.calls)
        about: dict[str, Any] = dict(step=step, split="train", verdict=verdict, calls=self.calls, timelines=lines)
        return Episode(f"{self.task.task_id}/{repeat}", self.task, repeat, **about)


Play = Callable[[Talk], Awaitable[Episode]]


class Learner:
    """A Qwen3 of one layer over `vocabulary` tokens, trained on the groups that it plays."""

    def __init__(self, config: AjetConfig, *, vocabulary: int, slots: int) -> None:
        self.config = config
        model = tiny_qwen3(vocab_size=vocabulary, tie_word_embeddings=False, layers=1)
        self.trainer = Trainer(model, config)
        self.engine = TransformersEngine(self.trainer.policy.model, max_num_seqs=slots)

    def play(self, tasks: Sequence[Task], repeats: int, play: Play, step: int) -> list[Group]:
        """Each task so many times."""

        async def everything() -> list[Episode]:
            keys = [(step, at, repeat) for at in range(len(tasks)) for repeat in range(repeats)]
            return await asyncio.gather(*(play(Talk(self, tasks[key[1]], key)) for key in keys))

        played = asyncio.run(everything())
        return [Group(task, at, played[at * repeats : (at + 1) * repeats]) for at, task in enumerate(tasks)]

    def learn(self, groups: Sequence[Group], step: int) -> TrainingBatch:
        """One update, if there is something to learn from."""
        batch = assign_credit(groups, self.config, step=step)
        if batch.samples:
            with self.engine.paused():
                self.trainer.update(batch)
            self.engine.weights_changed(self.trainer.version)
        return batch
