"""Batches to policy versions: who owns engine and optimizer. debug and local here, verl and trinity in processes apart.

In: training batches. Out: a policy version and an engine that samples with it. `open_backbone` opens what a descriptor
names in this process (`contract.Backbone`), `open_scorer` what computes its log-probabilities again
(`contract.RecordedScorer`); one with processes of its own has a runner (`runner.Runner`) instead. Everything above is
the same on all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from ajet.backbone.contract import Backbone, RecordedScorer
    from ajet.config import Experiment
    from ajet.rollout.teacher import TeacherModel

__all__ = ["open_backbone", "open_scorer", "open_teacher", "saved_dtype", "saved_version"]


def open_backbone(experiment: Experiment) -> Backbone:
    """The backbone that `ajet.backbone` names, in this process. Raises ConfigError for one that has processes of its
    own."""
    from ajet.config.backbones import list_shipped_backbones
    from ajet.config.plugin import load_code

    backbone = experiment.backbone
    if backbone.opens is None:
        raise ConfigError(
            f"The {backbone.name} backbone does not run in this process, which this command needs.",
            where="ajet.backbone",
            expected=" or ".join(each.name for each in list_shipped_backbones().values() if "serves" in each.can),
            do="use the same YAML with --backbone local",
        )
    opened: Backbone = load_code(backbone.opens)(experiment)
    return opened


def open_scorer(experiment: Experiment, checkpoint: Path | None) -> RecordedScorer:
    """What computes log-probabilities as the trainer does, at the weights in `checkpoint`, or, with None, at those the
    run began with. Raises UserError."""
    opened: RecordedScorer = _load_scorer_class(experiment)(experiment, checkpoint)
    return opened


def open_teacher(experiment: Experiment, tokenizer: Any) -> TeacherModel | None:
    """Whom the experiment's algorithm learns from; None where it needs none. `tokenizer`: the policy's. Raises
    UserError where the teacher cannot be asked, or has another one."""
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
    """The number format that a checkpoint's weights were sampled in: float32, or a coarser one. Raises UserError where
    that is not known."""
    from ajet.backbone.local.checkpoint import read_dtype

    return "float32" if read_dtype(checkpoint) == "float32" else "bfloat16"


def saved_version(experiment: Experiment, checkpoint: Path) -> int:
    """The policy version whose weights a checkpoint holds. Raises UserError where that is not known."""
    version: int = _load_scorer_class(experiment).version_of(checkpoint)
    return version


def _load_scorer_class(experiment: Experiment) -> type[RecordedScorer]:
    from ajet.config.plugin import load_code

    backbone = experiment.backbone
    if backbone.scorer is None:
        raise ConfigError(f"The weights of a {backbone.name} run cannot be loaded here.", where="ajet.backbone")
    kind: type[RecordedScorer] = load_code(backbone.scorer)
    return kind
