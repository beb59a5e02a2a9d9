"""Open shared stores as samplers and trainers do, and let what they stand on fail.

Among the gates and their helpers only this module names internals of `ajet.store`. Faults are those of a
database: what a connection does at a statement, or at an operation of its server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ajet.store import (
    Address,
    Kept,
    Lease,
    LeaseLostError,
    Policy,
    SharedStore,
    TrainerFencedError,
    open_shared,
    sqlite_store,
)
from ajet.store.digest import ALTERED

__all__ = [
    "ALTERED",
    "Address",
    "TrainerFencedError",
    "Kept",
    "Lease",
    "LeaseLostError",
    "Policy",
    "SharedStore",
    "mongo_operations_fail",
    "open_shared",
    "sqlite_connections_fail",
]


@contextmanager
def sqlite_connections_fail(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Within the block a store in SQLite uses, for each connection, what `wrap` returns for it."""
    connect = sqlite_store.connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_store, "connect", lambda path: wrap(connect(path)))
        yield


@contextmanager
def mongo_operations_fail(point: Callable[[], None]) -> Iterator[None]:
    """Within the block `point` is called before and after each operation of a store in MongoDB.

    It may raise. Each operation also looks for leases that have ended.
    """
    from ajet_mongo import connection, positions

    asked = connection.MongoConnection.run_operation

    def with_faults(self: Any, operation: Any, base: Any) -> Any:
        def one(base: Any) -> Any:
            point()
            answer = operation(base)
            point()
            return answer

        return asked(self, one, base)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "EXPIRES_EVERY", 0.0)
        patch.setattr(connection.MongoConnection, "run_operation", with_faults)
        yield
