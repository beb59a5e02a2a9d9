"""The run's context in its processes: the experiment and its first step.

Invariant: the context travels in an environment variable, inherited by all processes of the run. Secrets are not part
of the context (`shipped_experiment`).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ajet_ray.shipped_experiment import pack_experiment, restore_experiment

if TYPE_CHECKING:
    from ajet.config import Experiment

VARIABLE = "AJET_TRINITY"


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run of the current process."""

    experiment: Experiment
    run_id: str
    begun: int
    """The step before the launch's first step."""
    total: int
    """The last step of the run."""
    ranks: int
    """Number of processes sharing a batch."""


def build_variable(experiment: Experiment, *, run_id: str, begun: int, total: int, ranks: int) -> dict[str, str]:
    """Build the variable with the context."""
    about = {**pack_experiment(experiment, run_id=run_id), "begun": begun, "total": total, "ranks": ranks}
    return {VARIABLE: json.dumps(about)}


@lru_cache(maxsize=1)
def load_context() -> RunContext:
    """Load the context of the current process's run."""
    about = json.loads(os.environ[VARIABLE])
    return RunContext(restore_experiment(about), about["run_id"], about["begun"], about["total"], about["ranks"])
