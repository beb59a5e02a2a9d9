"""Task families of the PyPI package reasoning-gym, judged by their own scorers.

Invariant: a task stores family, seed and index, from which the family rebuilds the entry; a recorded episode can be
judged again from its task alone. The splits never share an entry's seed.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ajet.schema.errors import JudgeFailure, MissingExtraError, TaskError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_reader.contract import TaskSplit

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.task_reader.reasoning_gym"
SEED_OFFSET = 1_000_003
"""Validation seed minus training seed. Entry i is drawn with seed + i, so a split has at most this many tasks."""


class ReasoningGymReader:
    """`reasoning_gym`: `metadata["answer"]` is one right answer; the judge may accept others."""

    def __init__(self, experiment: Experiment) -> None:
        section = experiment.ajet.task_reader.reasoning_gym
        if section.size > SEED_OFFSET:
            raise TaskError(f"At most {SEED_OFFSET} tasks can be drawn.", where=f"{KEY}.size")
        self._family = section.dataset
        self._params = dict(section.params or {})
        self._seeds = {"train": section.seed, "validation": section.seed + SEED_OFFSET}
        self._sizes = {"train": section.size, "validation": section.validation_size}

        self._dataset_by_seed: dict[int, Any] = {}

    @cached_property
    def judge(self) -> ReasoningGymJudge:
        """The judge that scores answers by the task family's own rule."""
        return ReasoningGymJudge(self)

    def has(self, split: TaskSplit) -> bool:
        """Return True if the split has tasks."""
        return self._sizes[split] > 0

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Generate the tasks of a split. Raises TaskError for an unknown task family or parameter."""
        entries = self.entries(self._seeds[split])
        tasks = []
        for index in range(self._sizes[split]):
            entry = entries[index]
            origin = {"dataset": self._family, "seed": self._seeds[split], "index": index}
            tasks.append(
                Task(
                    main_query=entry["question"],
                    task_id=f"{self._family}-{self._seeds[split]}-{index}",
                    metadata={"answer": entry["answer"], "reasoning_gym": origin},
                )
            )
        return tasks

    def entries(self, seed: int) -> Any:
        """Return the Reasoning Gym dataset of this task family for the training or the validation seed.

        `entries[index]` is one entry (question and answer); `entries.score_answer(answer, entry)` scores an answer.
        """
        if seed not in self._dataset_by_seed:
            self._dataset_by_seed[seed] = self._create_dataset(seed)
        return self._dataset_by_seed[seed]

    def _create_dataset(self, seed: int) -> Any:
        """Create the Reasoning Gym dataset of the task family for a seed.

        Raises:
            MissingExtraError: the package is not installed.
            TaskError: the family or a parameter is unknown.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # from compiling the package's code
                from reasoning_gym.factory import DATASETS, create_dataset
        except ImportError:
            raise MissingExtraError(
                "reasoning-gym", "reasoning-gym", needed_for="task_reader.type: reasoning_gym"
            ) from None
        if self._family not in DATASETS:
            similar = difflib.get_close_matches(str(self._family), DATASETS, n=3) or sorted(DATASETS)[:8]
            raise TaskError(
                f"reasoning-gym has no task family {self._family}.",
                where=f"{KEY}.dataset",
                expected=f"one of its {len(DATASETS)} families, such as {', '.join(similar)}",
            )
        size = max((self._sizes[split] for split, split_seed in self._seeds.items() if split_seed == seed), default=1)
        try:
            return create_dataset(self._family, seed=seed, size=max(1, size), **self._params)
        except (TypeError, ValueError, AssertionError) as error:
            raise TaskError(
                f"The task family {self._family} refuses its parameters: {error}", where=f"{KEY}.params"
            ) from error


class ReasoningGymJudge:
    """Scores the workflow's `metadata["final_answer"]`, bare or in <answer> tags, by the task family's rule."""

    def __init__(self, reader: ReasoningGymReader) -> None:
        self._reader = reader

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple[float, bool]:
        """Return the family's score in 0..1 and True for full marks. Raises JudgeFailure without an answer."""
        from reasoning_gym.utils import extract_answer

        entry_origin = workflow_task.task.metadata["reasoning_gym"]
        if "final_answer" not in workflow_output.metadata:
            raise JudgeFailure('the workflow returned no metadata["final_answer"], which reasoning-gym\'s scorer needs')
        answer = workflow_output.metadata["final_answer"]
        answer = "" if answer is None else str(answer)
        tagged_answer = extract_answer(answer)
        entries = self._reader.entries(entry_origin["seed"])
        score = float(
            entries.score_answer(answer if tagged_answer is None else tagged_answer, entries[entry_origin["index"]])
        )
        return score, score >= 1.0
