"""The store of a run: finds the address in the run's settings, checks the store and opens it.

Invariant: a run has either a private store, used by the training process alone, or a shared store at an address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ajet.config.plugin import load_code
from ajet.config.plugins import find_part
from ajet.schema.errors import ConfigError
from ajet.store.contract import Kept, Store
from ajet.store.opening import (
    Address,
    check_store,
    find_driver,
    open_shared,
    recorded_settings,
    require_store,
    write_store_address,
)
from ajet.store.reader import StoreReader
from ajet.store.run_store import RunStore
from ajet.store.shared import SharedStore

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record.secrets import Redactor


def store_address(experiment: Experiment, folder: Path) -> Address | None:
    """Return the address of the run's shared store, or None for a private store. Raises ConfigError."""
    config = experiment.ajet.store
    plugin_part = find_part("store", config.type)
    if plugin_part is None or not plugin_part.schemes:  # only shared stores have addresses
        return None
    default = load_code(plugin_part.code).default
    address = Address.of(config.uri or default, base=folder, run=folder.name)
    if address.scheme not in plugin_part.schemes:
        raise ConfigError(
            f"store.uri is not an address of a store of type {config.type}: {address.shown}.",
            where="store.uri",
            expected=f"an address such as {default}",
        )
    return address


def require_own_store(experiment: Experiment, folder: Path) -> None:
    """Open and close the run's shared store, if any, before a model is loaded. Raises UserError."""
    if (address := store_address(experiment, folder)) is not None:
        require_store(address)


def check_own_store(experiment: Experiment, folder: Path) -> Address | None:
    """Check a run's shared store without creating or changing anything, and return its address.

    A private store has no address: the result is None.

    Args:
        folder: The run's folder. The folder may be missing: the start creates the folder.
    """
    if (address := store_address(experiment, folder)) is not None:
        check_store(address, made=folder)
    return address


def open_store(
    experiment: Experiment,
    folder: Path,
    *,
    pending: Path | None,
    ledger: str,
    at: Mapping[str, Any] | None,
    redact: Redactor | None = None,
    usable: Callable[[Sequence[Kept]], bool] | None = None,
) -> Store:
    """Open the store of the run in `folder` for the training process. Raises UserError.

    Args:
        pending: Folder for episodes that no checkpoint contains yet. None: episodes cannot be put.
        ledger: Name of the store, as in its checkpoints. A step's use of a group counts only if the checkpoint that
            recorded it has this name.
        at: The store's state in the checkpoint. None: no checkpoint.
        redact: Removes secrets from stored text.
        usable: Returns True if a position's stored episodes may be used at the checkpoint.
    """
    if (address := store_address(experiment, folder)) is not None:
        config = experiment.ajet.store
        shared = open_shared(
            address,
            lease_seconds=config.lease_seconds,
            max_attempts=config.max_attempts,
            unreachable_timeout=config.unreachable_timeout,
            at=at,
            rolls=True,
            run=ledger,
            settings=recorded_settings(folder),
            redact=redact,
            usable=usable,
        )
        write_store_address(folder, address.shown)
        return shared
    # Without `usable`, the default of the store's class holds.
    optional_arguments: dict[str, Any] = {"usable": usable} if usable is not None else {}
    store: Store = store_class(experiment)(pending, ledger=ledger, at=at, redact=redact, **optional_arguments)
    if not isinstance(store, RunStore):  # ajet does not know where a custom store keeps its episodes
        write_store_address(folder, experiment.ajet.store.type)
    return store


def open_reader(address: Address) -> StoreReader:
    """Open the store at an address read-only. Raises UserError without a store."""
    return find_driver(address).read(address)


def is_shared(store: Store) -> TypeGuard[SharedStore]:
    """Return True if several processes can use the store (`SharedStore`): only such a store has `announce`."""
    return hasattr(store, "announce")


def store_class(experiment: Experiment) -> type[Any]:
    """Return the class named by `store.type` for a private store. Raises UnresolvedReferenceError.

    The class takes the same arguments as `RunStore`.
    """
    from ajet.config.references import resolve_class

    required_methods = ("lease", "put", "close", "use", "commit", "forget")
    store_type, interface = experiment.ajet.store.type, "ajet.store.Store"
    return resolve_class(
        store_type, "store", base=experiment.base, key="ajet.store.type", methods=required_methods, like=interface
    )
