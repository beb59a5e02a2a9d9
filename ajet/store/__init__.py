"""The one ledger: where each task and its group is, from its lease to the step that used it.

In: positions of the training order that are leased, episodes as they end, groups as they close, what a step used or
discarded. Out: positions to play, closed groups, and what a checkpoint says of it all. Invariant: a store is opened at
a checkpoint, and uses that this one does not know never were. Which task stands at a position is the task reader's
business (`TaskOrder`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet.store import earlier_verl
from ajet.store.contract import Kept, Lease, LeaseLost, Store
from ajet.store.earlier import todays_state
from ajet.store.run_store import RunStore
from ajet.store.sqlite_store import SqliteStore

if TYPE_CHECKING:
    from ajet.config import Experiment

__all__ = [
    "Kept",
    "Lease",
    "LeaseLost",
    "RunStore",
    "SqliteStore",
    "Store",
    "earlier_verl",
    "store_class",
    "todays_state",
]


def store_class(experiment: Experiment) -> type[Any]:
    """What `store.type` names; made as `RunStore` is. Raises UnresolvedReference."""
    from ajet.config.references import class_of
    from ajet.config.schema.choices import STORES

    does = ("lease", "put", "close", "use", "commit", "forget")
    chosen, like = experiment.ajet.store.type, "ajet.store.Store"
    return class_of(chosen, STORES, base=experiment.base, what="ajet.store.type", does=does, like=like)
