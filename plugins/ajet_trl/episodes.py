"""Provide ajet's episodes as GRPOTrainer's `rollout_func`.

TRL's data set is one step of dummy prompts: ajet's task order decides the tasks of a step, as on every backbone.

Invariants: an episode is one row of exact tokens, with mask 1 at sampled tokens. The reward comes from ajet's judge;
TRL leaves episodes without a reward out of the group's baseline. An episode of several sequences (several agents, a
rewritten context) counts in the baseline, trains no token, and is logged. TRL's generation, chat templates and reward
models are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger

from ajet.rollout.failure import refuse_if_all_failed

if TYPE_CHECKING:
    from ajet.engine.contract import TokenEngine
    from ajet.record import RunDirectory
    from ajet.rollout import Rollout
    from ajet.schema.episode import Episode
    from ajet.task_reader import TaskOrder

NOTHING: dict[str, list[Any]] = {"prompt_ids": [0], "completion_ids": [0], "env_mask": [0], "logprobs": [0.0]}
"""The row of an episode without trained tokens."""


class TrlRollout:
    """Called by the trainer once a step, with one prompt for each episode."""

    __name__ = "episodes"  # TRL reads the name of its functions

    def __init__(
        self, rollout: Rollout, engine: TokenEngine, run: RunDirectory, order: TaskOrder, repeats: int
    ) -> None:
        self._rollout, self._engine, self._run = rollout, engine, run
        self._order, self._repeats = order, repeats

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, list[Any]]:
        """Run the episodes of a step. Raises UserError if every episode failed."""
        step = int(trainer.state.global_step)
        self._engine.weights_changed(step)  # its tensors are the trainer's
        count = len(prompts) // self._repeats
        tasks = [(place, self._order.task(place)) for place in range(step * count, (step + 1) * count)]
        groups = sorted(self._rollout.play(tasks, step=step + 1, split="train"), key=lambda group: group.order)
        episodes = [each for group in groups for each in sorted(group.episodes, key=lambda one: one.repeat)]
        self._run.episodes.write(step + 1, "train", episodes)
        self._run.status.set(step=step + 1)
        refuse_if_all_failed(episodes, step + 1)
        return self.build_rows(episodes)

    def build_rows(self, episodes: Sequence[Episode]) -> dict[str, list[Any]]:
        rows = [build_row(episode) for episode in episodes]
        found: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in NOTHING}
        found["verdict"] = [episode.reward if episode.scored else None for episode in episodes]
        lost = [each for each, row in zip(episodes, rows, strict=True) if each.scored and row is NOTHING]
        if lost:
            logger.warning(
                "{} of {} episodes are not trained: TRL needs exactly one sequence per episode ({} has {})",
                len(lost), len(episodes), lost[0].uuid, len([each for each in lost[0].timelines if each.sampled]),
            )  # fmt: skip
        return found


def build_row(episode: Episode) -> dict[str, list[Any]]:
    """Return the episode's only timeline, split at the first sampled token."""
    sampled = [timeline for timeline in episode.timelines if timeline.sampled] if episode.scored else []
    if len(sampled) != 1:
        return NOTHING
    (line,) = sampled
    own = np.flatnonzero(line.mask)
    start, stop = int(own[0]), int(own[-1]) + 1
    return {
        "prompt_ids": line.ids[:start].tolist(),
        "completion_ids": line.ids[start:stop].tolist(),
        "env_mask": line.mask[start:stop].astype(int).tolist(),
        "logprobs": np.where(line.mask, line.logprobs, 0)[start:stop].tolist(),
    }


def verdicts(verdict: Sequence[float | None], **others: Any) -> list[float | None]:
    """Return the judge's rewards, as TRL's reward function."""
    return list(verdict)
