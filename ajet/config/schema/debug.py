"""`debug`: the debug backbone."""

from __future__ import annotations

from ajet.config.schema.base import Section, key


class Debug(Section):
    """The debug backbone."""

    debug_max_parallel: int = key(4, "Episodes that run at the same time.", ge=1)
    debug_first_n_tasks: int = key(2, "Tasks to play.", ge=1)
