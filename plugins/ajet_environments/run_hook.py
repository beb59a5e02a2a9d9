"""The run hook of the package: it starts a run's services, and imports their code only if there are any."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ajet_environments.config import choose_services

if TYPE_CHECKING:
    from ajet.config import Experiment


@contextmanager
def run_services(experiment: Experiment, folder: Path, flags: Sequence[str], prefix: str) -> Iterator[str]:
    """Run the services of `ajet.services` within the block. Raises UserError."""
    if not choose_services(experiment, flags, os.environ):
        yield ""
        return
    from ajet_environments.companions import run_companions

    with run_companions(experiment, folder, flags, prefix) as names:
        yield f"{', '.join(names)} of ajet.services" if names else ""
