"""The store: registry of tasks and groups from the lease to the training step.

A position is a task's place in the training order, counted from 0; `TaskOrder` maps positions to tasks. A client's own
task has a position below 0. Input: leased positions, finished episodes, closed groups, used and discarded groups.
Output: positions to lease, closed groups, and the state for a checkpoint. Invariant: a store is opened at a checkpoint,
and uses unknown to the checkpoint are undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.schema.lazy_names import load_lazily

if TYPE_CHECKING:
    from ajet.store.contract import (
        TRANSIENT_ERRORS,
        Kept,
        Lease,
        LeaseLostError,
        Store,
        StoreUnavailableError,
        StoreUnreachableError,
    )
    from ajet.store.group_check import GroupRefusedError, GroupTerms, check_group, check_values
    from ajet.store.opening import (
        Address,
        StoreDriver,
        check_store,
        open_shared,
        recorded_settings,
        require_store,
        write_store_address,
    )
    from ajet.store.own_store import (
        check_own_store,
        is_shared,
        open_reader,
        open_store,
        require_own_store,
        store_address,
        store_class,
    )
    from ajet.store.reader import StoreReader
    from ajet.store.run_store import RunStore
    from ajet.store.shared import (
        AnnouncedPolicy,
        DeadLetter,
        Policy,
        Role,
        SharedStore,
        StoreDepths,
        StoreMember,
        StoreOptions,
        TrainerFencedError,
    )

__all__ = [
    "TRANSIENT_ERRORS",
    "Address",
    "AnnouncedPolicy",
    "DeadLetter",
    "StoreDepths",
    "TrainerFencedError",
    "GroupRefusedError",
    "GroupTerms",
    "Kept",
    "Lease",
    "LeaseLostError",
    "StoreMember",
    "StoreOptions",
    "Policy",
    "StoreReader",
    "Role",
    "RunStore",
    "SharedStore",
    "Store",
    "StoreUnavailableError",
    "StoreDriver",
    "StoreUnreachableError",
    "check_group",
    "check_values",
    "is_shared",
    "check_own_store",
    "check_store",
    "write_store_address",
    "open_reader",
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
        "contract": "TRANSIENT_ERRORS, Kept, Lease, LeaseLostError, Store, StoreUnavailableError, "
        "StoreUnreachableError",
        "group_check": "GroupRefusedError, GroupTerms, check_group, check_values",
        "opening": "Address, StoreDriver, check_store, write_store_address, open_shared, recorded_settings, "
        "require_store",
        "own_store": "is_shared, check_own_store, open_reader, open_store, require_own_store, store_address, "
        "store_class",
        "reader": "StoreReader",
        "run_store": "RunStore",
        "shared": "AnnouncedPolicy, DeadLetter, StoreDepths, TrainerFencedError, StoreMember, StoreOptions, "
        "Policy, Role, SharedStore",
    },
)
