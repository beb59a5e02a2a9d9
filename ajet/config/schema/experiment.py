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
        "Kind of store: {names}, or a reference to your own. `run_directory` is the run folder, for one process; "
        "`sqlite` a file for several processes of one machine; `mongodb` for any number of machines "
        "(docs/store.md).",
        part="store",
    )
    uri: str | None = key(
        None,
        "Address of the store: `sqlite:PATH` (null: `store.sqlite` in the run folder), or "
        "`mongodb://HOST:PORT/DATABASE` (null: this machine, port 27017; without a database name the run's name "
        "is used). User and password are in the environment: `AJET_STORE_USER`, `AJET_STORE_PASSWORD`.",
        training=False,
        when=_WHEN_SHARED,
    )
    lease_seconds: float = key(
        120.0,
        "Seconds without a heartbeat after which another process may run a sampler's tasks. A restarted trainer "
        "runs its own unfinished tasks again.",
        training=False,
        when=_WHEN_SHARED,
        gt=0,
    )
    unreachable_timeout: float = key(
        600.0,
        "Seconds to wait for an unreachable store, also with `--from-store` and `ajet sample`. Then the run ends "
        "with exit code 75; the same command resumes it.",
        training=False,
        gt=0,
    )
    max_attempts: int = key(
        5,
        "Number of failed or lost attempts after which a task is given up, with the reasons.",
        training=False,
        when=_WHEN_SHARED,
        ge=1,
    )


class DebugConfig(Section):
    """Limits of the debug backbone's runs."""

    debug_max_parallel: int = key(4, "Episodes that run at the same time.", ge=1)
    debug_first_n_tasks: int = key(2, "Number of tasks to run.", ge=1)


class GatewayConfig(Section):
    """The address of the workflows' model calls."""

    host: str | None = key(None, "Address to listen on; null is the loopback interface.")
    port: int = key(0, "Port; 0 lets the kernel choose a free one.", ge=0, le=65535)
    idle_timeout: float | None = key(
        600.0,
        "Seconds without a model call after which an episode of `ajet serve` fails; null: no limit.",
        idle={**idle_everywhere(ONLY_SERVED), SERVE: None},
        gt=0,
    )
    max_calls: int = key(16384, "Concurrent model calls; further requests get status 429.", ge=1)
    advertise: str = key("auto", "Host name of the gateway for clients on other machines and in containers.")
    leave_out_tools: list[str] = key(
        [],
        "Types of tools, such as web_search, that the gateway removes from requests. Without the key it refuses tools "
        "that only a provider can run.",
    )
    leave_out_fields: list[str] = key(
        [],
        "Fields, such as truncation, that the gateway removes from requests.",
    )


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
        "Seconds after the first trainable group after which a step trains on the groups at hand; null: wait for "
        "the complete batch.",
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
        "ajet_default_project", "A label of your own, written to the record and to trackers.", training=False
    )
    experiment_name: str = key(
        "read_yaml_name",
        "Name of the run and of its folder; `read_yaml_name`: the name of the YAML file.",
        training=False,
    )
    experiment_dir: str = key(
        "auto",
        "Folder that contains the runs; `auto`: the folder given by `--exp-dir` (launcher_record).",
        training=False,
    )
    base_dir: str | None = key(
        None,
        "Folder where relative references and paths are looked up first; null: the YAML's folder. The resolved "
        "YAML in a run folder sets it, so that it repeats the run.",
        training=False,
    )
    backbone: str = key(
        "debug",
        "System that samples and trains: one that comes with ajet, or one that an installed package adds. "
        "`--backbone` overrides it.",
        training=False,
    )
    seed: int = key(0, "Seed of task order, sampling and every other random choice.", ge=0)
    model: ModelConfig = section(ModelConfig, "The model to train.")
    data: DataConfig = section(DataConfig, "Lengths and batch size.")
    rollout: RolloutConfig = section(RolloutConfig, "How tasks are turned into episodes.")
    task_reader: TaskReaderConfig = section(TaskReaderConfig, "Source of the tasks.")
    environment: EnvironmentConfig = section(
        EnvironmentConfig, "Tools and environments of the agents.", idle={SERVE: OWN_AGENTS}
    )
    task_judge: TaskJudgeConfig = section(TaskJudgeConfig, "The source of rewards if the workflow sets none.")
    context_tracker: ContextTrackerConfig = section(ContextTrackerConfig, "How model calls become samples to train on.")
    trainer_common: TrainerConfig = section(TrainerConfig, "How the policy is updated, validated and saved.")
    sft: SftConfig = section(SftConfig, "Training on given replies (`ajet sft`).")
    store: StoreConfig = section(StoreConfig, "Where tasks, episodes and groups are stored.")
    debug: DebugConfig = section(DebugConfig, "The debug backbone.", training=False)
    gateway: GatewayConfig = section(
        GatewayConfig, "The HTTP server that receives the workflows' model calls.", training=False
    )
    serve: ServeConfig = section(
        ServeConfig,
        "Batches and tasks of `ajet serve`.",
        training=False,
        idle={**idle_everywhere(ONLY_SERVED), SERVE: None},
    )

    def count_steps(self, tasks: int) -> int:
        """Return the number of training steps: `total_training_steps`, or the steps of `total_epochs`.

        An epoch may begin within a batch, so only the last step exceeds the last epoch.

        Args:
            tasks: Number of training tasks in an epoch.
        """
        trainer = self.trainer_common
        return trainer.total_training_steps or math.ceil(trainer.total_epochs * tasks / self.data.train_batch_size)

    @property
    def needs_reference_model(self) -> bool:
        """True if the run needs log-probabilities of the initial model: for a KL term, or for DPO."""
        trainer = self.trainer_common
        return trainer.use_kl_loss or trainer.algorithm.use_kl_in_reward or self.sft.objective == "dpo"

    @property
    def validation_repeats(self) -> int:
        """Number of attempts at each validation task: if replies are sampled, at least the n of pass@n."""
        val = self.rollout.val_kwargs
        return max(self.trainer_common.val_pass_n, val.num_repeat) if val.do_sample else val.num_repeat
