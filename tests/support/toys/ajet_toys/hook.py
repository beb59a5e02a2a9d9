"""A run hook that notes when it is entered and left."""

from __future__ import annotations

from contextlib import contextmanager

noted: list[str] = []


@contextmanager
def note_run(experiment, folder, flags, prefix):
    noted.append("entered")
    yield "a toy beside the run"
    noted.append("left")
