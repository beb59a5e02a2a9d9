"""What of a run its processes know: the experiment, and from which step on.

Invariant: it travels in one variable of the environment, which all processes of the run inherit; secrets do not
(`shipped_experiment`).
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
    """The run that this process belongs to."""

    experiment: Experiment
    run_id: str
    begun: int
    """The step that the launch goes on from."""
    total: int
    """The last step."""
    ranks: int
    """Processes that the trainer deals a batch out to."""


def build_variable(experiment: Experiment, *, run_id: str, begun: int, total: int, ranks: int) -> dict[str, str]:
    """The variable."""
    about = {**pack_experiment(experiment, run_id=run_id), "begun": begun, "total": total, "ranks": ranks}
    return {VARIABLE: json.dumps(about)}


@lru_cache(maxsize=1)
def load_context() -> RunContext:
    """The run."""
    about = json.loads(os.environ[VARIABLE])
    return RunContext(restore_experiment(about), about["run_id"], about["begun"], about["total"], about["ranks"])
