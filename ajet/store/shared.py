"""The interface of a store shared by processes, beyond `Store`; tested by tests/contract/test_shared_stores.py.

Invariant: only the process that opened the store last with `rolls` trains; earlier trainers are refused
(`TrainerFencedError`). A holder renews each lease within the lease time, by the clock of the store. An expired lease
counts as a failed attempt; after `max_attempts` the position becomes a dead letter with all reasons, and the order
continues without it. Leases of a trainer end with the next trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ajet.record.secrets import Redactor
from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import RunFailed, UserError
from ajet.store.contract import Kept, Lease, Store, StoreUnavailableError
from ajet.store.outage import UNREACHABLE_TIMEOUT

Role = Literal["trainer", "sampler", "server"]
LEASE_SECONDS = 120.0
MAX_ATTEMPTS = 5
Usable = Callable[[Sequence[Kept]], bool]
NONE: Mapping[str, float] = {}
EXPIRED = "its lease ended: whoever held it fell silent"


class TrainerFencedError(RunFailed, StoreUnavailableError):
    """Another process trains on the store, or this process opened the store without `rolls`."""


def fenced_trainer_error(where: str, own: int, latest: int) -> TrainerFencedError:
    """Return the error for trainer number `own` (0: none) if not the latest."""
    if not own:
        return TrainerFencedError("This process opened the store without training.", where=where)
    return TrainerFencedError(
        f"Another trainer has taken over this run's store: it is number {latest}, this one was number {own}.",
        where=where,
        expected="one trainer per store; work of this trainer since its last checkpoint does not count",
        do="Let the other trainer continue, or end it and start this run again.",
    )


def other_run_error(where: str) -> UserError:
    """Return the error for a trainer that opens the store of another run."""
    return UserError(
        "The store belongs to another run.",
        where=where,
        expected="an empty store, or the store of this run",
        do="Name another store in store.uri or --from-store, or remove this store if its run is not needed any more.",
    )


def other_version_error(where: str, found: int, known: int) -> StoreUnavailableError:
    """Return the error for a store of another version than `known`."""
    later = found > known
    return StoreUnavailableError(
        f"The store is of version {found}, made by {'a later' if later else 'an earlier'} ajet.",
        where=where,
        expected=f"version {known}",
        do="Update ajet on this machine."
        if later
        else "Name an empty store in store.uri or --from-store, or use the ajet that made this one.",
    )


def other_store_error(where: str) -> UserError:
    """Return the error for a checkpoint unknown to the store."""
    return UserError(
        "The checkpoint of this run was made with another store.",
        where=where,
        expected="the store at the time of the checkpoint",
        do=f"Set store.type and store.uri, or --from-store, as they were; or, with an empty one named "
        f"there, {FRESH_ADVICE}.",
    )


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of the process that opens a store."""

    lease_seconds: float = LEASE_SECONDS  # lease time without renewal
    max_attempts: int = MAX_ATTEMPTS
    """Failed attempts until a position is dead."""
    rolls: bool = False
    """True for the training process; the store is reset to the checkpoint `at` (None: no checkpoint)."""
    at: Mapping[str, Any] | None = None
    run: str = ""
    """Identity of the run, set by the first trainer."""
    settings: str = ""
    """Resolved YAML stored by the trainer for readers; "" keeps the stored YAML."""
    redact: Redactor | None = None  # none: no redaction
    unreachable_timeout: float = UNREACHABLE_TIMEOUT
    """Seconds an operation waits for an unreachable store, after the store was opened."""
    usable: Usable | None = None
    """Returns True if put episodes may be used at the checkpoint. Unusable episodes are removed and the position is
    played again. `None` admits all."""


TASKS_KEY = "count"
"""Key announced with a policy: number of tasks per epoch."""


@dataclass(frozen=True, slots=True)
class Policy:
    run: str
    step: int
    weights: str
    """Folder or address of the weights."""
    lineage: str = ""
    """Fingerprints of the base weights, tokenizer and chat template. Samplers with other fingerprints are refused."""
    tokenizer: str = ""
    template: str = ""
    below: int | None = None
    """First position not to be played yet; `None` for no limit."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Further announcements of the trainer, as JSON values."""


@dataclass(frozen=True, slots=True)
class AnnouncedPolicy:
    """An announced policy. The policy with the higher (trainer, step) is later."""

    policy: Policy
    trainer: int
    """Number of the trainer on this store, from 1."""
    age: float
    """Seconds since the announcement, by the clock of the store."""


@dataclass(frozen=True, slots=True)
class StoreMember:
    """A process that takes part in the run."""

    role: Role
    name: str
    age: float
    """Seconds since the last heartbeat, by the store's clock."""
    joined: float
    """Seconds since the first heartbeat."""
    leases: int  # number of held positions
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A position that is not leased any more, with its reasons."""

    order: int
    reasons: tuple[str, ...]
    """Reason of each failed attempt, in order."""
    ends: int  # number of put episodes


@dataclass(frozen=True, slots=True)
class StoreDepths:
    """Number of positions by state. `over`: used positions still stored."""

    waiting: int = 0
    leased: int = 0
    closed: int = 0  # closed and never used
    again: int = 0  # closed, used and reusable
    over: int = 0
    dead: int = 0
    next: int = 0
    """First position of the order never leased."""
    oldest_lease: float | None = None
    """Age of the oldest lease in seconds, by the store's clock; None without leases."""
    oldest_closed: float | None = None
    """Seconds since the closing of the group that waits longest; `None` without closed groups."""


class SharedStore(Store, Protocol):
    """The store of several processes. Thread-safe.

    Every method raises StoreUnavailableError for an unreachable store. `use`, `discard`, `commit` and `forget` belong
    to the trainer: other processes get a TrainerFencedError.
    """

    def lease(self, count: int, *, below: int | None = None) -> list[Lease]:
        """Lease as in `Store`. `below`: limit for positions never leased before."""
        ...

    def closed(self, count: int | None = None, *, but: Collection[int] = ()) -> list[Lease]:
        """Return the first `count` positions that are closed and not over, without `but`, in order."""
        ...

    def use(
        self, orders: Iterable[int], step: int, *, again: Collection[int] = (), advantages: Mapping[str, float] = NONE
    ) -> None:
        """Use as in `Store`. `advantages`: by episode uuid, stored for readers of the database only."""
        ...

    def renew(self, leases: Iterable[Lease]) -> None:
        """Renew all valid leases. Raises LeaseLostError with the lost positions."""
        ...

    def fail(self, lease: Lease, reason: str) -> None:
        """Record a failed attempt at a position; a stopping player uses `give_back`. Raises LeaseLostError."""
        ...

    def quarantine(self, order: int, reason: str) -> None:
        """Make a closed position a dead letter: stored, but never trained on or leased.

        Raises:
            TrainerFencedError: this process does not train.
            LeaseLostError: the position is not closed.
        """
        ...

    def dead(self) -> list[DeadLetter]:
        """Return the dead letters, in order."""
        ...

    def revive(self, order: int) -> None:
        """Free a dead position and clear its reasons. Changed episodes are removed.

        Raises LeaseLostError if the position is not dead.
        """
        ...

    def announce(self, policy: Policy) -> None:
        """Announce the policy for samplers; trainer only. Raises TrainerFencedError."""
        ...

    def announced(self) -> AnnouncedPolicy | None:
        """Return the latest announced policy; None without one."""
        ...

    def join(self, role: Role, name: str, details: Mapping[str, Any] | None = None) -> None:
        """Register this process under a unique name, or renew its heartbeat. Later leases carry the name."""
        ...

    def leave(self) -> None: ...

    def members(self) -> list[StoreMember]:
        """Return all members, trainers first, then by name; silent ones included."""
        ...

    def depths(self) -> StoreDepths: ...

    def disconnect(self) -> None: ...
