"""Batches to policy versions: who owns the engine and the optimizer. debug and local, and verl in processes of its own.

In: training batches. Out: a policy version and an engine that samples with it. `open_backbone` chooses debug or local,
which share one contract, by `ajet.backbone`; verl lays out its own processes (`ajet.run.verl` drives it). Everything
above is the same on all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from ajet.backbone.contract import Backbone
    from ajet.backbone.local.scorer import Scorer
    from ajet.config import Experiment

__all__ = ["open_backbone", "open_scorer", "saved_dtype", "saved_version"]


def open_backbone(experiment: Experiment) -> Backbone:
    """The backbone that `ajet.backbone` names, in this process. Raises ConfigError for one that is none: verl has
    processes of its own (`ajet.run.verl`)."""
    name = experiment.ajet.backbone
    if name == "debug":
        from ajet.backbone.debug import DebugBackbone

        return DebugBackbone(experiment)
    if name == "local":
        from ajet.backbone.local import LocalBackbone

        return LocalBackbone(experiment)
    raise ConfigError(
        f"The {name} backbone does not run in this process, which this command needs.",
        where="ajet.backbone",
        expected="debug or local",
        do="use the same YAML with --backbone local",
    )


def open_scorer(experiment: Experiment, checkpoint: Path | None) -> Scorer:
    """The trainer's forward pass at the weights in `checkpoint`, or, with None, at those the run began with. Raises
    UserError."""
    from ajet.backbone.local.scorer import Scorer

    return Scorer(experiment, checkpoint)


def saved_dtype(checkpoint: Path) -> str:
    """The number format that a checkpoint's weights were sampled in: float32, or a coarser one. Raises UserError where
    that is not known."""
    from ajet.backbone.local.checkpoint import dtype_of

    return "float32" if dtype_of(checkpoint) == "float32" else "bfloat16"


def saved_version(checkpoint: Path) -> int:
    """The policy version whose weights a checkpoint holds. Raises UserError where that is not known."""
    from ajet.backbone.local.checkpoint import version_of

    return version_of(checkpoint)
