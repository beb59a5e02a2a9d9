"""Passes the experiment and a few numbers of the run to all of its processes.

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
    """What a process of Trinity needs to know about its run."""

    experiment: Experiment
    run_id: str
    begun: int
    """The step before the launch's first step."""
    total: int
    """The last step of the run."""
    ranks: int
    """Number of trainer processes that share a batch."""


def build_variable(experiment: Experiment, *, run_id: str, begun: int, total: int, ranks: int) -> dict[str, str]:
    """Return the environment variable that carries the context to the run's processes.

    Args:
        begun: step of the resumed checkpoint, or 0.
        total: last step of the run.
        ranks: number of trainer processes that share a batch.
    """
    context = {**pack_experiment(experiment, run_id=run_id), "begun": begun, "total": total, "ranks": ranks}
    return {VARIABLE: json.dumps(context)}


@lru_cache(maxsize=1)
def load_context() -> RunContext:
    """Return the context of this process's run, read from the environment once."""
    context = json.loads(os.environ[VARIABLE])
    return RunContext(
        restore_experiment(context), context["run_id"], context["begun"], context["total"], context["ranks"]
    )
