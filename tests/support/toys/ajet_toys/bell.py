"""A flag of a launch that writes into the run's folder before and after the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.record import RunDirectory


@contextmanager
def ring(run: RunDirectory) -> Iterator[None]:
    """Within the block the bell has been rung once, after it twice."""
    bell = run.path / "bell.txt"
    bell.write_text("ding")
    try:
        yield
    finally:
        bell.write_text(f"{bell.read_text()} dong")
