"""The run hook of the package: it starts a run's services, and imports their code only if there are any."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ajet_environments.config import choose_services

if TYPE_CHECKING:
    from ajet.config import Experiment


def run_services(
    experiment: Experiment, folder: Path, flags: Sequence[str], prefix: str
) -> AbstractContextManager[str]:
    """Return a block in which the services of `ajet.services` run. Raises UserError."""
    if not choose_services(experiment, flags, os.environ):
        return nullcontext("")
    from ajet_environments.companions import run_companions

    return run_companions(experiment, folder, flags, prefix)
