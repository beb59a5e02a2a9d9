"""Plays GEPA's candidates on ajet's rollout, and describes the attempts to the reflecting model.

Invariants: a candidate is scored by the experiment's own workflow and judge. An attempt that ajet itself failed has no
score: its task is played again, and never counts as 0. Every attempt is recorded, in one step for each evaluation:
those that select a prompt as validation, those that a reflection sees as training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from statistics import fmean
from typing import Any

from gepa.core.adapter import EvaluationBatch, GEPAAdapter

from ajet.record import RunDirectory
from ajet.record.console import counted, print_line
from ajet.record.files import append_lines
from ajet.record.plain_json import dumps
from ajet.rollout import Rollout
from ajet.schema.episode import Episode, Group, Split, list_episodes
from ajet.schema.errors import UserError
from ajet.schema.task import Task, extract_text
from ajet.train.accounting import episode_metrics, validation_metrics
from ajet.train.parts import RunParts, pins_of
from ajet_gepa.prompt_key import PromptKey

COMPONENT = "prompt"
"""Name by which GEPA refers to the optimized text."""
LONGEST_PART = 2000
"""Characters of a message, or of a task's metadata, that the reflecting model gets."""
CANDIDATES = "candidates.jsonl"

PlacedTask = tuple[int, Task]
"""Position in the training order, and the task."""
ReflectedAttempt = dict[str, str]
"""What the reflecting model gets of an attempt."""


class PromptAdapter(GEPAAdapter[PlacedTask, ReflectedAttempt, float]):
    """GEPA's view of an experiment: its tasks, its agent with a candidate prompt, its judge."""

    propose_new_texts = None

    def __init__(self, parts: RunParts, run: RunDirectory, key: PromptKey, selection: Sequence[PlacedTask]) -> None:
        self._parts = parts
        self._run = run
        self._key = key
        self._selection = {order for order, _ in selection}
        self._repeats = parts.experiment.ajet.validation_repeats
        self._step = self._attempts = 0
        self._lowest_reward = 0.0
        self._names: dict[str, int] = {}

    def evaluate(
        self, batch: list[PlacedTask], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[ReflectedAttempt, float]:
        """Play a candidate prompt on tasks, record the attempts, and return a score per task.

        Args:
            batch: the tasks, with their positions in the training order.
            candidate: the prompt, under COMPONENT.
            capture_traces: True to describe each task's worst attempt for the reflecting model.

        Raises:
            UserError: a task cannot be scored.
        """
        text = candidate[COMPONENT]
        experiment = self._key.set_text(self._parts.experiment, text)
        with closing(
            Rollout(
                experiment, self._parts.gateway, self._parts.workflow, self._parts.judge, run_id=self._run.run_id,
                pins=pins_of(self._run),
            )
        ) as rollout:  # fmt: skip
            by_order = self._play_tasks(rollout, batch)
        groups = [by_order[order] for order, _ in batch]
        scores = [self._score_group(group) for group in groups]
        self._record_evaluation(text, groups, scores)
        worst_attempts = None
        # Described here, because GEPA would continue after an error in make_reflective_dataset.
        if capture_traces:
            worst_attempts = [describe_attempt(min(group.episodes, key=self._score_episode)) for group in groups]
        return EvaluationBatch(scores, scores, worst_attempts, num_metric_calls=len(batch) * self._repeats)

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],
        eval_batch: EvaluationBatch[ReflectedAttempt, float],
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return what the reflecting model gets of each task: the question, the worst attempt, and its judgement."""
        assert eval_batch.trajectories is not None, "reflection follows an evaluation with traces"
        return {COMPONENT: eval_batch.trajectories}

    def _play_tasks(self, rollout: Rollout, batch: Sequence[PlacedTask]) -> dict[int, Group]:
        """Play the tasks, and play those without a countable attempt once more.

        Returns:
            A group per task, by its position in the training order, each with at least one attempt that counts.

        Raises:
            UserError: a task has no countable attempt after the second try.
        """
        groups: dict[int, Group] = {}
        missing = list(dict(batch).items())
        for _ in range(2):
            for group in rollout.play(missing, step=self._step, split="validation", repeats=self._repeats):
                group.episodes = [episode for episode in group.episodes if not episode.left_out]
                if group.episodes:
                    groups[group.order] = group
            self._step += 1
            missing = [(order, task) for order, task in missing if order not in groups]
            if not missing:
                return groups
        order, task = missing[0]
        raise UserError(
            f"No attempt at {counted(len(missing), 'task')} could be scored, because a server, the judge or the "
            "environment failed.",
            where=f"training task {order} ({task.task_id})",
            do=f"the log says what failed: {self._run.log_file.path}",
        )

    def _score_episode(self, episode: Episode) -> float:
        """Return the reward; a failure or a missing score counts as the lowest reward so far, at most 0."""
        return episode.reward if episode.scored and episode.reward is not None else self._lowest_reward

    def _score_group(self, group: Group) -> float:
        """Return the mean score of a task's attempts, and remember the lowest reward for attempts without one."""
        rewards = [episode.reward for episode in group.episodes if episode.scored and episode.reward is not None]
        self._lowest_reward = min([self._lowest_reward, *rewards])
        return fmean(self._score_episode(episode) for episode in group.episodes)

    def _record_evaluation(self, text: str, groups: Sequence[Group], scores: Sequence[float]) -> None:
        """Record an evaluation's episodes, metrics and candidate, and print its mean reward.

        Args:
            text: the candidate prompt.
            groups: the attempts, in the order of `scores`.
            scores: score of each task.
        """
        step, is_selection = self._step - 1, groups[0].order in self._selection
        split: Split = "validation" if is_selection else "train"
        episodes = [replace(episode, split=split, step=step) for episode in list_episodes(groups)]
        self._run.episodes.write(step, split, episodes)
        self._run.metrics.log(step, validation_metrics(groups) if is_selection else episode_metrics(episodes, "train"))
        self._run.status.set(phase="validation", step=step)
        self._attempts += len(episodes)
        candidate_number = self._names.setdefault(text, len(self._names))
        line = {
            "step": step,
            "candidate": candidate_number,
            "selects": is_selection,
            "scores": list(scores),
            "prompt": text,
        }
        append_lines(self._run.path / CANDIDATES, [self._run.redact(dumps(line))])
        kind = "selection" if is_selection else "reflection"
        print_line(
            f"prompt {candidate_number}: reward {fmean(scores):.3g} over {counted(len(scores), f'{kind} task')} "
            f"({counted(self._attempts, 'attempt')} so far)",
            style=None if is_selection else "dim",
        )


def describe_attempt(episode: Episode) -> ReflectedAttempt:
    """Return an attempt as a record of GEPA's reflective data set, without its system message."""
    messages = [message for message in episode.messages if message.get("role") != "system"]
    verdict, failure = episode.verdict, episode.failure
    lines = [f"Reward: {episode.reward if episode.reward is not None else 'none'}."]
    if verdict is not None and verdict.success is not None:
        lines.append("The task was solved." if verdict.success else "The task was not solved.")
    if verdict is not None and verdict.reason:
        lines.append(f"Judgement: {verdict.reason}")
    if failure is not None:
        lines.append(f"The attempt failed: {failure.boundary}: {failure.kind}: {failure.message}")
    if episode.task.metadata:
        metadata = json.dumps(episode.task.metadata, ensure_ascii=False, default=str)
        lines.append(f"What the judge knows of the task, and the assistant does not: {metadata[:LONGEST_PART]}")
    return {
        "Inputs": episode.task.main_query[:LONGEST_PART],
        "Generated Outputs": "\n".join(_format_message(message) for message in messages),
        "Feedback": "\n".join(lines),
    }


def _format_message(message: Mapping[str, Any]) -> str:
    """Return a message as one text: role, content and tool calls, each cut to LONGEST_PART characters."""
    calls = "".join(
        f" → {call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or ()
    )
    return f"{message.get('role')}: {extract_text(message)[:LONGEST_PART]}{calls[:LONGEST_PART]}"
