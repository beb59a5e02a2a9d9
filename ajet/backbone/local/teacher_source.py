"""Where the model of a teacher beside the policy is. Needs no torch: it is asked before anything is loaded.

Invariant: a path at which there is none is told with the key that holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.engine.model_source import ModelSource

KEY = "ajet.trainer_common.algorithm.teacher.path"


def teacher_source(experiment: Experiment, *, weights: bool = True) -> ModelSource:
    """The model of `algorithm.teacher.path`, which is set. `weights`: as `locate` has it. Raises UserError."""
    from ajet.engine.model_source import locate

    settings = experiment.ajet
    path, trusted = settings.trainer_common.algorithm.teacher.path, settings.model.trust_remote_code
    assert path is not None
    try:
        return locate(path, base=experiment.base, weights=weights, trust_remote_code=trusted)
    except UserError as problem:
        problem.where = KEY
        problem.do = "correct the path; a teacher that a run of yours leaves is trained before its student"
        raise
