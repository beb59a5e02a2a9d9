"""The root: `ajet:` itself.

Invariant: the names and defaults are those that people's YAMLs already use; a project that sets only
`project_name` composes.
"""

from __future__ import annotations

import math

from ajet.config.schema.base import ONLY_SERVED, OWN_AGENTS, SERVE, Section, key, nowhere, section
from ajet.config.schema.data import ContextTracker, Data
from ajet.config.schema.infrastructure import Debug, Gateway, Serve, Store
from ajet.config.schema.model import Model
from ajet.config.schema.rollout import Rollout
from ajet.config.schema.sft import Sft
from ajet.config.schema.tasks import Environment, TaskJudge, TaskReader
from ajet.config.schema.trainer_common import TrainerCommon


class AjetConfig(Section):
    """What one experiment is: model, tasks, workflow, judge, and how to train."""

    project_name: str = key(
        "ajet_default_project", "A label of your own, kept in the record and told to trackers.", training=False
    )
    experiment_name: str = key(
        "read_yaml_name",
        "Name of the run and of its folder below the experiment directory; `read_yaml_name` takes the YAML file's.",
        training=False,
    )
    experiment_dir: str = key(
        "auto",
        "Folder that holds the runs; `auto` is the one given by `--exp-dir` (launcher_record).",
        training=False,
    )
    base_dir: str | None = key(
        None,
        "Folder in which relative references and paths are looked up first; null is the YAML file's. The resolved "
        "YAML in a run directory sets it, so that it repeats the run from there.",
        training=False,
    )
    backbone: str = key(
        "debug",
        "Who owns the engine and the optimizer, by name: one that comes with ajet, or one that an installed package "
        "brings. `--backbone` overrides it.",
        training=False,
    )
    seed: int = key(0, "Seed of task order, sampling and every other random choice.", ge=0)
    model: Model = section(Model, "The model to tune.")
    data: Data = section(Data, "Lengths and batch size.")
    rollout: Rollout = section(Rollout, "How tasks are turned into episodes.")
    task_reader: TaskReader = section(TaskReader, "Where tasks come from.")
    environment: Environment = section(
        Environment, "The tools and worlds that agents act in.", idle={SERVE: OWN_AGENTS}
    )
    task_judge: TaskJudge = section(TaskJudge, "Who decides the reward when the workflow leaves it open.")
    context_tracker: ContextTracker = section(ContextTracker, "How model calls become samples to train on.")
    trainer_common: TrainerCommon = section(TrainerCommon, "How the policy is updated, validated and saved.")
    sft: Sft = section(Sft, "Learning from replies that are given: `ajet sft`.")
    store: Store = section(Store, "The ledger of tasks, episodes and groups.")
    debug: Debug = section(Debug, "The debug backbone.", training=False)
    gateway: Gateway = section(Gateway, "Where the workflows' model calls arrive.", training=False)
    serve: Serve = section(
        Serve,
        "Batches and tasks of `ajet serve`.",
        training=False,
        idle={**nowhere(ONLY_SERVED), SERVE: None},
    )

    def total_steps(self, tasks: int) -> int:
        """Training steps over so many tasks: `total_training_steps`, or else as many as `total_epochs` take: the next
        epoch begins within a batch, and the last step alone goes beyond the last one."""
        trainer = self.trainer_common
        return trainer.total_training_steps or math.ceil(trainer.total_epochs * tasks / self.data.train_batch_size)

    @property
    def keeps_reference(self) -> bool:
        """Whether the model that training began with is asked for logprobs."""
        trainer = self.trainer_common
        return trainer.use_kl_loss or trainer.algorithm.use_kl_in_reward or self.sft.objective == "dpo"

    @property
    def validation_repeats(self) -> int:
        """The number of times each validation task is played: once when greedy, or as often as pass@n asks."""
        val = self.rollout.val_kwargs
        return max(self.trainer_common.val_pass_n, val.num_repeat) if val.do_sample else val.num_repeat
