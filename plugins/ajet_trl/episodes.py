"""Episodes as GRPOTrainer's `rollout_func`: it asks for completions, and gets what agents did.

TRL's data set is one step of prompts that say nothing: which tasks a step has is ajet's order, as on every backbone.

Invariants: an episode is one row of exact tokens, with mask 1 where the policy sampled; its reward is ajet's judge's,
None where it has none, which TRL leaves out of the group's baseline. One that is not one sequence (a team of agents, a
context that was written anew) counts in the baseline, trains no token, and is said. TRL's own generation, its chat
templates and its reward models are never asked.
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
"""The row of an episode that trains nothing."""


class TrlRollout:
    """Called by the trainer once a step, with as many prompts as it is to have episodes."""

    __name__ = "episodes"  # TRL asks its functions for one

    def __init__(
        self, rollout: Rollout, engine: TokenEngine, run: RunDirectory, order: TaskOrder, repeats: int
    ) -> None:
        self._rollout, self._engine, self._run = rollout, engine, run
        self._order, self._repeats = order, repeats

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, list[Any]]:
        """Play a step. Raises UserError where every episode failed."""
        step = int(trainer.state.global_step)
        self._engine.weights_changed(step)  # its tensors are the trainer's
        count = len(prompts) // self._repeats
        tasks = [(place, self._order.task(place)) for place in range(step * count, (step + 1) * count)]
        groups = sorted(self._rollout.play(tasks, step=step + 1, split="train"), key=lambda group: group.order)
        episodes = [each for group in groups for each in sorted(group.episodes, key=lambda one: one.repeat)]
        self._run.episodes.write(step + 1, "train", episodes)
        self._run.status.set(step=step + 1)
        refuse_if_all_failed(episodes, step + 1)
        return self._build_rows(episodes)

    def _build_rows(self, episodes: Sequence[Episode]) -> dict[str, list[Any]]:
        rows = [build_row(episode) for episode in episodes]
        found: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in NOTHING}
        found["verdict"] = [episode.reward if episode.scored else None for episode in episodes]
        lost = [each for each, row in zip(episodes, rows, strict=True) if each.scored and row is NOTHING]
        if lost:
            logger.warning(
                "{} of {} episodes train nothing: they are not one sequence each, and TRL takes no other ({} has {})",
                len(lost), len(episodes), lost[0].uuid, len([each for each in lost[0].timelines if each.sampled]),
            )  # fmt: skip
        return found


def build_row(episode: Episode) -> dict[str, list[Any]]:
    """Its one timeline: what was there before the first sampled token, and what came from then on."""
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
    """TRL's reward function: what ajet's judge said."""
    return list(verdict)
