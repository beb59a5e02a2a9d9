"""Backbones turn training batches into policy versions. Each owns an engine and, if it trains, an optimizer.

`open_backbone` opens an in-process backbone (`contract.Backbone`) from its descriptor: debug or local. verl and trinity
run in separate processes and have a runner instead. `open_scorer` opens a `LocalScorer`, used to recompute
log-probabilities. All other packages are the same for every backbone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from ajet.backbone.contract import Backbone
    from ajet.backbone.local.scorer import LocalScorer
    from ajet.config import Experiment
    from ajet.rollout.teacher import TeacherModel

__all__ = ["open_backbone", "open_scorer", "open_teacher", "saved_dtype", "saved_version"]


def open_backbone(experiment: Experiment) -> Backbone:
    """Open the backbone named by `ajet.backbone` in this process.

    Raises:
        ConfigError: the backbone runs in separate processes.
    """
    from ajet.config.backbones import list_shipped_backbones
    from ajet.config.plugin import load_code

    backbone = experiment.backbone
    if backbone.opens is None:
        raise ConfigError(
            f"This command needs the model in its own process, but the {backbone.name} backbone uses separate "
            "processes.",
            where="ajet.backbone",
            expected=" or ".join(
                shipped_backbone.name
                for shipped_backbone in list_shipped_backbones().values()
                if "serves" in shipped_backbone.can
            ),
            do="use the same YAML with --backbone local",
        )
    instance: Backbone = load_code(backbone.opens)(experiment)
    return instance


def open_scorer(experiment: Experiment, checkpoint: Path | None) -> LocalScorer:
    """Open a scorer that computes log-probabilities as the trainer does.

    Args:
        checkpoint: folder of the weights to load; None for the weights at the start of the run.

    Raises:
        UserError: the weights cannot be loaded.
    """
    scorer: LocalScorer = _load_scorer_class(experiment)(experiment, checkpoint)
    return scorer


def open_teacher(experiment: Experiment, tokenizer: Any) -> TeacherModel | None:
    """Open the teacher, a second model whose log-probabilities the algorithm uses. Return None if it needs none.

    Args:
        tokenizer: the policy's tokenizer.

    Raises:
        UserError: the teacher cannot be reached or uses another tokenizer.
    """
    from ajet.algorithm import open_algorithm

    config = experiment.ajet
    if "teacher" not in open_algorithm(config, base=experiment.base).needs:
        return None
    if config.trainer_common.algorithm.teacher.path is not None:
        from ajet.backbone.local.teacher import LocalTeacher

        return LocalTeacher(experiment, tokenizer)
    from ajet.engine.teacher_endpoint import TeacherEndpoint

    teacher = TeacherEndpoint(config.trainer_common.algorithm.teacher)
    teacher.require_same_tokenizer(tokenizer)
    return teacher


def saved_dtype(checkpoint: Path) -> str:
    """Return the number format in which a checkpoint's weights were sampled: "float32" or "bfloat16".

    Every format coarser than float32 is reported as bfloat16.

    Raises:
        UserError: the format is unknown.
    """
    from ajet.backbone.local.checkpoint import read_dtype

    return "float32" if read_dtype(checkpoint) == "float32" else "bfloat16"


def saved_version(experiment: Experiment, checkpoint: Path) -> int:
    """Return the policy version of the weights in a checkpoint.

    Raises:
        UserError: the version is unknown.
    """
    version: int = _load_scorer_class(experiment).version_of(checkpoint)
    return version


def _load_scorer_class(experiment: Experiment) -> type[LocalScorer]:
    """Import and return the scorer class of the experiment's backbone. Raises ConfigError if the backbone has none."""
    from ajet.config.plugin import load_code

    backbone = experiment.backbone
    if backbone.scorer is None:
        raise ConfigError(
            f"This command cannot load the weights of a run of the {backbone.name} backbone.", where="ajet.backbone"
        )
    kind: type[LocalScorer] = load_code(backbone.scorer)
    return kind
