"""The one ledger: where each task and its group is, from its lease to the step that used it.

In: positions of the training order that are leased, episodes as they end, groups as they close, what a step used or
discarded. Out: positions to play, closed groups, and what a checkpoint says of it all. Invariant: a store is opened at
a checkpoint, and uses that this one does not know never were. Which task stands at a position is the task reader's
business (`TaskOrder`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet.store.contract import CANNOT_NOW, Kept, Lease, LeaseLost, Store, StoreAway, StoreUnreachable
    from ajet.store.group_check import GroupRefused, GroupTerms, check_group, check_values
    from ajet.store.opening import (
        Address,
        StoreDriver,
        look_at_store,
        note_elsewhere,
        open_shared,
        recorded_settings,
        require_store,
    )
    from ajet.store.own_store import (
        is_shared,
        look_at_own_store,
        open_reading,
        open_store,
        require_own_store,
        store_address,
        store_class,
    )
    from ajet.store.reading import Reading
    from ajet.store.run_store import RunStore
    from ajet.store.shared import Announced, Dead, Depths, Fenced, Member, Opener, Policy, Role, SharedStore

__all__ = [
    "CANNOT_NOW",
    "Address",
    "Announced",
    "Dead",
    "Depths",
    "Fenced",
    "GroupRefused",
    "GroupTerms",
    "Kept",
    "Lease",
    "LeaseLost",
    "Member",
    "Opener",
    "Policy",
    "Reading",
    "Role",
    "RunStore",
    "SharedStore",
    "Store",
    "StoreAway",
    "StoreDriver",
    "StoreUnreachable",
    "check_group",
    "check_values",
    "is_shared",
    "look_at_own_store",
    "look_at_store",
    "note_elsewhere",
    "open_reading",
    "open_store",
    "open_shared",
    "recorded_settings",
    "require_own_store",
    "require_store",
    "store_class",
    "store_address",
]

__getattr__ = load_lazily(
    __name__,
    {
        "contract": "CANNOT_NOW, Kept, Lease, LeaseLost, Store, StoreAway, StoreUnreachable",
        "group_check": "GroupRefused, GroupTerms, check_group, check_values",
        "opening": "Address, StoreDriver, look_at_store, note_elsewhere, open_shared, recorded_settings, require_store",
        "own_store": "is_shared, look_at_own_store, open_reading, open_store, require_own_store, store_address, "
        "store_class",
        "reading": "Reading",
        "run_store": "RunStore",
        "shared": "Announced, Dead, Depths, Fenced, Member, Opener, Policy, Role, SharedStore",
    },
)
