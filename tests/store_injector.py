"""The names of tests/support/store_world.py for tests that are no gates yet."""

from tests.support.store_world import (
    AHEAD,
    BATCH,
    KEEP,
    LEASE,
    REPEATS,
    SAMPLERS,
    TIMES,
    Connection,
    Faults,
    Ground,
    Killed,
    SqliteGround,
    World,
)

__all__ = [
    "AHEAD",
    "BATCH",
    "KEEP",
    "LEASE",
    "REPEATS",
    "SAMPLERS",
    "TIMES",
    "Connection",
    "Faults",
    "Ground",
    "Killed",
    "SqliteGround",
    "World",
]
