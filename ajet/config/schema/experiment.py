"""The root section `ajet:`.

Invariant: names and defaults are those in existing YAMLs; a project with only `project_name` composes.
"""

from __future__ import annotations

import math
from typing import Literal

from ajet.config.schema.base import (
    ONLY_SERVED,
    OWN_AGENTS,
    SERVE,
    SHARED_STORES,
    Section,
    idle_everywhere,
    key,
    section,
)
from ajet.config.schema.data import ContextTrackerConfig, DataConfig
from ajet.config.schema.model import ModelConfig
from ajet.config.schema.rollout import RolloutConfig
from ajet.config.schema.sft import SftConfig
from ajet.config.schema.tasks import EnvironmentConfig, TaskJudgeConfig, TaskReaderConfig
from ajet.config.schema.trainer_common import TrainerConfig

_WHEN_SHARED = ("store.type", SHARED_STORES)


class StoreConfig(Section):
    """The store: leased tasks, finished groups, and groups used by steps."""

    type: str = key(
        "run_directory",
        "Where it is kept: {names}, or a reference to a store of your own. The folder of the run is for one process, a "
        "file of SQLite for those of one machine, MongoDB for any number (docs/store.md).",
        part="store",
    )
    uri: str | None = key(
        None,
        "Its address: `sqlite:PATH` (null: `store.sqlite` in the folder of the run), or `mongodb://HOST:PORT/DATABASE` "
        "(null: this machine, port 27017; without a database it is named as the run). User and password are in the "
        "environment: `AJET_STORE_USER`, `AJET_STORE_PASSWORD`.",
        training=False,
        when=_WHEN_SHARED,
    )
    lease_seconds: float = key(
        120.0,
        "After so long without a word of the process that plays a task, another may play it. What the trainer plays "
        "itself is played again when it is started again.",
        training=False,
        when=_WHEN_SHARED,
        gt=0,
    )
    unreachable_timeout: float = key(
        600.0,
        "Seconds to wait for an unreachable store, also with `--from-store` and `ajet sample`. Then the run ends with "
        "exit code 75, and the same command resumes it.",
        training=False,
        gt=0,
    )
    max_attempts: int = key(
        5,
        "After so many failed or lost attempts a task is set aside with the reasons.",
        training=False,
        when=_WHEN_SHARED,
        ge=1,
    )


class DebugConfig(Section):
    """Limits of the debug backbone's runs."""

    debug_max_parallel: int = key(4, "Episodes that run at the same time.", ge=1)
    debug_first_n_tasks: int = key(2, "Tasks to play.", ge=1)


class GatewayConfig(Section):
    """The address of the workflows' model calls."""

    host: str | None = key(None, "Address to listen on; null is the loopback interface.")
    port: int = key(0, "Port; 0 lets the kernel choose a free one.", ge=0, le=65535)
    idle_timeout: float | None = key(
        600.0,
        "Seconds without a model call after which an episode of `ajet serve` fails; null waits for ever.",
        idle={**idle_everywhere(ONLY_SERVED), SERVE: None},
        gt=0,
    )
    max_calls: int = key(16384, "Concurrent model calls; further requests get status 429.", ge=1)
    advertise: str = key("auto", "Host name of the gateway for clients on other machines and in containers.")


class ServeConfig(Section):
    """Composition of a step from clients' episodes, and limits per task."""

    batch_by: Literal["groups", "tasks", "episodes"] = key(
        "groups",
        "What `data.train_batch_size` counts: complete groups; different tasks with a complete group (further groups "
        "of these are in the same step); or scored episodes in complete groups, `train_batch_size * num_repeat` of "
        "them, however many each group has.",
    )
    batch_seconds: float | None = key(
        None,
        "Seconds after the first trainable group until a step is made of the present groups; null waits for the "
        "complete batch.",
        gt=0,
    )
    max_per_task: int | None = key(
        None,
        "Concurrent episodes of a task; a further request gets another task, or status 429 (`task_busy`) if the "
        "request named the task. Null: only `rollout.max_env_worker` limits them.",
        ge=1,
    )


class AjetConfig(Section):
    """The settings of an experiment: model, tasks, workflow, judge and training."""

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
    model: ModelConfig = section(ModelConfig, "The model to tune.")
    data: DataConfig = section(DataConfig, "Lengths and batch size.")
    rollout: RolloutConfig = section(RolloutConfig, "How tasks are turned into episodes.")
    task_reader: TaskReaderConfig = section(TaskReaderConfig, "Where tasks come from.")
    environment: EnvironmentConfig = section(
        EnvironmentConfig, "The tools and worlds that agents act in.", idle={SERVE: OWN_AGENTS}
    )
    task_judge: TaskJudgeConfig = section(TaskJudgeConfig, "The source of rewards if the workflow sets none.")
    context_tracker: ContextTrackerConfig = section(ContextTrackerConfig, "How model calls become samples to train on.")
    trainer_common: TrainerConfig = section(TrainerConfig, "How the policy is updated, validated and saved.")
    sft: SftConfig = section(SftConfig, "Training on given replies: `ajet sft`.")
    store: StoreConfig = section(StoreConfig, "The store of tasks, episodes and groups.")
    debug: DebugConfig = section(DebugConfig, "The debug backbone.", training=False)
    gateway: GatewayConfig = section(GatewayConfig, "Where the workflows' model calls arrive.", training=False)
    serve: ServeConfig = section(
        ServeConfig,
        "Batches and tasks of `ajet serve`.",
        training=False,
        idle={**idle_everywhere(ONLY_SERVED), SERVE: None},
    )

    def count_steps(self, tasks: int) -> int:
        """Return the training steps over `tasks` tasks: `total_training_steps`, or the steps of `total_epochs`.

        An epoch may begin within a batch, so only the last step exceeds the last epoch.
        """
        trainer = self.trainer_common
        return trainer.total_training_steps or math.ceil(trainer.total_epochs * tasks / self.data.train_batch_size)

    @property
    def needs_reference_model(self) -> bool:
        """True if log-probabilities of the initial model are needed."""
        trainer = self.trainer_common
        return trainer.use_kl_loss or trainer.algorithm.use_kl_in_reward or self.sft.objective == "dpo"

    @property
    def validation_repeats(self) -> int:
        """Attempts at each validation task: one when greedy, otherwise at least the n of pass@n."""
        val = self.rollout.val_kwargs
        return max(self.trainer_common.val_pass_n, val.num_repeat) if val.do_sample else val.num_repeat
