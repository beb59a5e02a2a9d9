"""Groups of given replies, for `ajet sft`, from a data set or a recorded run, in seeded order.

A lesson is one training example: a conversation, or a pair of a chosen and a rejected one. Invariants: a lesson counts
as learned in the commit of the checkpoint with its step, so a resumed run takes the same lessons as an uninterrupted
run. Log-probabilities come from the trainer's own forward pass, packed as in an update, at temperature 1.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ajet.algorithm.supervised_batch import TEMPERATURE, build_likelihood_batch, build_pairs_batch, list_samples
from ajet.backbone.contract import score_samples
from ajet.config.schema.algorithm import AlgorithmConfig
from ajet.rollout.components import make_renderer
from ajet.task_reader import TaskOrder
from ajet.train.session import TrainingSession, open_store, score_twice
from ajet.train.sft.lessons import Lesson
from ajet.train.sft.reading import log_lessons, read_held_out_lessons, read_lessons
from ajet.train.sources.source import Source
from ajet.train.step import StepGroups

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig, Experiment
    from ajet.schema.batch import Sample, TrainingBatch
    from ajet.schema.call import Floats
    from ajet.schema.episode import Group
    from ajet.train.interrupts import Interrupts
    from ajet.train.sink import RunSink

PAIR_METRICS = ("loss", "dpo/accuracy", "dpo/margin")
"""Metrics of a validation with held-out pairs."""


class RepliesSource(Source):
    """Makes a group of each training example, and measures the loss of held-out examples in validations."""

    def __init__(self, lessons: Sequence[Lesson], validation: Sequence[Lesson], objective: LessonObjective) -> None:
        self._lesson_of_task = {lesson.task.task_id: lesson for lesson in lessons}
        self._validation, self._objective = validation, objective

    def next_groups(self, session: TrainingSession) -> StepGroups:
        """Lease the next positions of the training order from the store, and return their examples as groups."""
        started, tasks = time.monotonic(), session.task_order
        settings, step = session.experiment.ajet, session.step + 1
        ignore_tools = settings.context_tracker.timeline_merging_policy.ignore_tools
        groups = [
            self._lesson_of_task[tasks.task(lease.order).task_id].make_group(
                session.run.run_id, step, lease.order, ignore_tools=ignore_tools
            )
            for lease in session.store.lease(settings.data.train_batch_size)
        ]
        groups.sort(key=lambda group: group.order)
        return session.add_given_up(StepGroups(started, groups))

    def validate_if_due(self, session: TrainingSession) -> None:
        """Compute and record the loss on held-out examples if this step is a validation step."""
        if not self._validation or not session.is_validation_due(session.total_steps, always_last=True):
            return
        started, run, step = time.monotonic(), session.run, session.step
        run.status.set(phase="validation", step=step)
        groups = [
            lesson.make_group(run.run_id, step, index, "validation") for index, lesson in enumerate(self._validation)
        ]
        metrics = {f"validation/{name}": value for name, value in self._objective.measure_loss(groups).items()}
        metrics |= {"validation/rows": len(groups), "seconds/validation": time.monotonic() - started}
        session.sink.show(step, metrics)
        run.metrics.log(step, metrics)
        session.note_validation()


class LessonObjective:
    """The objective of `ajet sft`: builds the batch of a step, and measures the loss of held-out examples."""

    def __init__(self, settings: AjetConfig, backbone: Backbone) -> None:
        self._settings, self._backbone = settings, backbone
        self._is_dpo = settings.sft.objective == "dpo"

    def make_batch(self, groups: Sequence[Group], step: int) -> TrainingBatch:
        """Build the batch for an update. The metric `train/rows` is the number of training examples."""
        if self._is_dpo:
            batch = build_pairs_batch(groups, self._settings, self._score_twice, step=step)
        else:
            batch = build_likelihood_batch(groups, self._settings, step=step)
        batch.metrics["train/rows"] = len(groups)
        return batch

    def measure_loss(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the loss on all groups, per token or (with DPO) per pair, without an update."""
        if self._is_dpo:
            measured = self.make_batch(groups, step=0).metrics
            return {name: measured[name] for name in PAIR_METRICS}
        samples = list_samples(groups)
        masks = [sample.timeline.mask for sample in samples]
        tokens = self._settings.trainer_common.micro_batch_tokens
        with self._backbone.scorer() as scorer:
            logprob_rows = score_samples(scorer, samples, tokens=tokens, temperature=TEMPERATURE)
        total = sum(
            -float(logprobs_T[mask].sum(dtype=np.float64)) for logprobs_T, mask in zip(logprob_rows, masks, strict=True)
        )
        return {"loss": total / max(1, sum(int(mask.sum()) for mask in masks))}

    def _score_twice(self, samples: list[Sample]) -> tuple[list[Floats], list[Floats]]:
        """Return the logprobs [T] of each sample under the policy and under the reference model, at temperature 1."""
        tokens = self._settings.trainer_common.micro_batch_tokens
        return score_twice(self._backbone, samples, tokens=tokens, temperature=TEMPERATURE)


def train_on_replies(sink: RunSink, interrupts: Interrupts) -> None:
    """Train a run on given replies.

    Raises:
        KeyboardInterrupt: after saving, when interrupted.
        UserError: a lesson or a setting is invalid.
    """
    from ajet.backbone import open_backbone
    from ajet.engine.model_source import locate_model
    from ajet.engine.models import load_tokenizer
    from ajet.train.loop import train

    experiment, settings = sink.experiment, sink.experiment.ajet
    assert settings.model.path is not None, "a run without model.path is refused before"
    model = locate_model(settings.model.path, base=experiment.base, weights=False)
    renderer = make_renderer(settings, load_tokenizer(model))
    lessons, validation = read_lessons(experiment, renderer), read_held_out_lessons(experiment, renderer)
    backbone = open_backbone(adapt_to_replies(experiment))
    try:
        objective = LessonObjective(settings, backbone)
        tasks = TaskOrder([lesson.task for lesson in lessons], seed=settings.seed, shuffle=settings.data.shuffle)
        store = open_store(sink.run, tasks)
        session = TrainingSession(sink, backbone, store, tasks, interrupts, objective.make_batch)
        log_lessons(settings, lessons, validation, session.total_steps)
        train(session, RepliesSource(lessons, validation, objective))
    finally:
        backbone.close()


def adapt_to_replies(experiment: Experiment) -> Experiment:
    """Return the experiment for opening the backbone. The record stores the user's settings.

    Each batch makes a single optimizer step with a loss without ratio. The cheapest engine is opened, because no token
    is sampled.
    """
    settings = experiment.ajet.model_copy(deep=True)
    trainer, rollout = settings.trainer_common, settings.rollout
    trainer.algorithm = AlgorithmConfig(policy_loss="sft")
    trainer.use_kl_loss = False
    trainer.mini_batch_num = 1
    trainer.mode = "sync"
    trainer.canary = None
    rollout.engine = "transformers"
    rollout.temperature = 1.0
    rollout.top_p = 1.0
    rollout.top_k = -1
    return replace(experiment, ajet=settings)
