"""The experiment that a command looks at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.config import Experiment


def opened(conf: Path | None, backbone: str | None, overrides: Sequence[str] | None) -> Experiment:
    """Compose `conf`; without one, the defaults and overrides alone."""
    from ajet.config import load_experiment
    from ajet.config.experiment import defaults_only

    if conf is None:
        return defaults_only(backbone=backbone, overrides=overrides or ())
    return load_experiment(conf, backbone=backbone, overrides=overrides or ())
