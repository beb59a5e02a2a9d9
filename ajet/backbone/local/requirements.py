"""Checks of settings for the local backbone and lookup of a local teacher's model, without torch.

Invariant: a launch, its dry run and `ajet config validate` refuse the same settings. A teacher path without a model is
reported with its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from ajet.algorithm.learning_rate import LearningRateSchedule
from ajet.engine.drivers import find_driver
from ajet.schema.errors import ConfigError, UserError, require_packages

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.config.schema import AjetConfig
    from ajet.engine.model_source import ModelSource


def require_trainable(config: AjetConfig, *, looking: bool = False) -> None:
    """Check that the local backbone can train with the settings.

    Args:
        looking: True without a launch: the settings may belong to a sampler with a server that follows the trainer.

    Raises:
        ConfigError: training would refuse the settings.
    """
    trainer, rollout = config.trainer_common, config.rollout
    if config.model.path is None:
        raise ConfigError(
            "model.path is not set, so there is no model to train.",
            where="ajet.model.path",
            do="try embedded:smollm2-135m",
        )
    if rollout.engine == "endpoint":
        raise ConfigError(
            "The local backbone cannot train on replies of an endpoint, which returns no token ids.",
            where="ajet.rollout.engine",
            expected="auto or transformers, which sample with the trainer's own weights, or vllm, which gets a copy",
        )
    find_driver(config).require_trainable(config, looking=looking)
    if rollout.temperature <= 0:
        raise ConfigError(
            "At temperature 0 all attempts at a task are the same, so training cannot learn from their differences.",
            where="ajet.rollout.temperature",
            expected="a number above 0, such as 1.0",
        )
    LearningRateSchedule.from_config(trainer.optim, trainer.total_training_steps)


def warn_of_context(config: AjetConfig, positions: int | None) -> None:
    """Log a warning if `rollout.max_model_len` is longer than the model's context; the model's own length is used.

    The key's default stands for at most the model's own length, and gives no warning.

    Args:
        positions: the model's maximum sequence length; None if unknown.
    """
    wanted = config.rollout.max_model_len
    if positions is None or wanted <= positions or wanted == type(config.rollout).model_fields["max_model_len"].default:
        return
    logger.warning(
        "rollout.max_model_len is {}, but {} takes {} tokens: the run uses {}",
        wanted, config.model.path, positions, positions,
    )  # fmt: skip


def require_machine(config: AjetConfig) -> None:
    """Check that the machine has the configured device and packages.

    Raises:
        ConfigError: the device is missing.
        MissingExtraError: a package is missing.
    """
    find_driver(config).require_machine(config)
    from ajet.backbone.local.machine import choose_device

    choose_device(config.trainer_common.device)
    lora = config.trainer_common.lora
    if lora.rank or lora.adapters:
        require_packages("peft", extra="local", needed_for="LoRA (trainer_common.lora.rank)")


KEY = "ajet.trainer_common.algorithm.teacher.path"


def teacher_source(experiment: Experiment, *, weights: bool = True) -> ModelSource:
    """Locate the model of `algorithm.teacher.path`, which must be set.

    Args:
        weights: as in `locate_model`.

    Raises:
        UserError: the model cannot be found.
    """
    from ajet.engine.model_source import locate_model

    settings = experiment.ajet
    path, trusted = settings.trainer_common.algorithm.teacher.path, settings.model.trust_remote_code
    assert path is not None
    try:
        return locate_model(path, base=experiment.base, weights=weights, trust_remote_code=trusted)
    except UserError as problem:
        problem.where = KEY
        problem.do = "correct the path; if the teacher comes from another run, finish that run first"
        raise
