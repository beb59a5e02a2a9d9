"""The interface of a store shared by processes, beyond `Store`. Tested by tests/contract/test_shared_stores.py.

A position is a task's place in the training order. Invariant: only the process that opened the store last with `rolls`
trains; earlier trainers are refused (`TrainerFencedError`). The process that holds a lease renews it within the lease
time, by the clock of the store. An expired lease counts as a failed attempt; after `max_attempts` the position becomes
a dead letter (leased no more) with all reasons, and the order continues without it. Leases of a trainer end with the
next trainer.
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
EXPIRED = "its lease ended: the process that held the lease sent no heartbeat"


class TrainerFencedError(RunFailed, StoreUnavailableError):
    """Another process became the trainer of the store, or this process opened the store without `rolls`."""


def fenced_trainer_error(where: str, own: int, latest: int) -> TrainerFencedError:
    """Return the error for a process that is not the store's latest trainer.

    Args:
        own: this process's number as a trainer; 0 if the process opened the store without `rolls`.
        latest: number of the latest trainer.
    """
    if not own:
        return TrainerFencedError(
            "This process did not open the store as a trainer, so it cannot change the policy or use groups.",
            where=where,
        )
    return TrainerFencedError(
        f"Another trainer has opened this run's store: it is trainer number {latest}, this process was number {own}.",
        where=where,
        expected="one trainer per store; what this trainer did since its last checkpoint does not count",
        do="Let the other trainer continue, or stop it and start this run again.",
    )


def other_run_error(where: str) -> UserError:
    """Return the error for a trainer that opens the store of another run."""
    return UserError(
        "The store belongs to another run.",
        where=where,
        expected="an empty store, or the store of this run",
        do="Set another store in store.uri or --from-store, or delete this store if its run is not needed any more.",
    )


def other_version_error(where: str, found: int, known: int) -> StoreUnavailableError:
    """Return the error for a store of another version than `known`."""
    later = found > known
    return StoreUnavailableError(
        f"The store has schema version {found}: {'a later' if later else 'an earlier'} version of ajet created it.",
        where=where,
        expected=f"schema version {known}",
        do="Update ajet on this machine."
        if later
        else "Set an empty store in store.uri or --from-store, or use the ajet version that created this store.",
    )


def other_store_error(where: str) -> UserError:
    """Return the error for a checkpoint unknown to the store."""
    return UserError(
        "This run's checkpoint was made with another store.",
        where=where,
        expected="the store that the run used when it wrote the checkpoint",
        do=f"Set store.type and store.uri, or --from-store, to that store; or set an empty store, and {FRESH_ADVICE}.",
    )


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options of the process that opens a store."""

    lease_seconds: float = LEASE_SECONDS  # lease time without renewal
    max_attempts: int = MAX_ATTEMPTS
    """Number of failed attempts after which a position is dead."""
    rolls: bool = False
    """True for the training process; the store is reset to the checkpoint `at`."""
    at: Mapping[str, Any] | None = None
    """State of the store in the checkpoint, from `Store.commit`. None: no checkpoint."""
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
    """The trainer's policy, as announced to samplers."""

    run: str
    step: int
    weights: str
    """Folder or address of the weights."""
    lineage: str = ""
    """Fingerprints of the base weights, tokenizer and chat template. Samplers with other fingerprints are refused."""
    tokenizer: str = ""
    template: str = ""
    below: int | None = None
    """Samplers may start positions below this one only; `None` for no limit."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Further information for samplers, as JSON values."""


@dataclass(frozen=True, slots=True)
class AnnouncedPolicy:
    """A policy and the time of its announcement. The policy with the higher (trainer, step) is later."""

    policy: Policy
    trainer: int
    """Number of the trainer on this store, from 1."""
    age: float
    """Seconds since the announcement, by the clock of the store."""


@dataclass(frozen=True, slots=True)
class StoreMember:
    """A process registered in the store: a trainer or a sampler."""

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
    """The number of positions in each state. `over` counts used positions that are still stored."""

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
        """Lease the next `count` positions, as `Store.lease` does.

        Args:
            below: New positions are leased only below this number. None: no limit.
        """
        ...

    def closed(self, count: int | None = None, *, but: Collection[int] = ()) -> list[Lease]:
        """Return positions that are closed and not over, in order.

        Args:
            count: Maximum number of positions. None: all.
            but: Numbers of positions to leave out.
        """
        ...

    def use(
        self, orders: Iterable[int], step: int, *, again: Collection[int] = (), advantages: Mapping[str, float] = NONE
    ) -> None:
        """Mark the groups at these positions as trained on in `step`, as `Store.use` does.

        Args:
            again: closed positions that stay closed, so that a later step may use them, too.
            advantages: Mean advantage by episode uuid. A store may save them for readers of its database.
        """
        ...

    def renew(self, leases: Iterable[Lease]) -> None:
        """Renew all leases that are still valid.

        Raises:
            LeaseLostError: some leases were not valid any more; the message names their positions.
        """
        ...

    def fail(self, lease: Lease, reason: str) -> None:
        """Record a failed attempt at a position and end the lease. Raises LeaseLostError.

        The position is free again, or dead after `max_attempts` failures. A process that stops without a failure calls
        `give_back` instead.
        """
        ...

    def quarantine(self, order: int, reason: str) -> None:
        """Make a closed position a dead letter: its group of episodes is stored, but never trained on.

        Args:
            order: Number of the position.
            reason: Why the group cannot be trained on.

        Raises:
            TrainerFencedError: this process does not train.
            LeaseLostError: the position is not closed.
        """
        ...

    def dead(self) -> list[DeadLetter]:
        """Return the positions that are leased no more after failures, with their reasons, in order."""
        ...

    def revive(self, order: int) -> None:
        """Free a dead letter's position and clear its reasons, so that it is leased again.

        Episodes of a position with a changed episode are removed.

        Raises:
            LeaseLostError: the position is no dead letter.
        """
        ...

    def announce(self, policy: Policy) -> None:
        """Announce the policy for samplers. Raises TrainerFencedError unless this process is the trainer."""
        ...

    def announced(self) -> AnnouncedPolicy | None:
        """Return the latest announced policy, or None without one."""
        ...

    def join(self, role: Role, name: str, details: Mapping[str, Any] | None = None) -> None:
        """Register this process under a unique name, or renew its heartbeat. Later leases carry the name."""
        ...

    def leave(self) -> None:
        """Remove this process from the members."""
        ...

    def members(self) -> list[StoreMember]:
        """Return all registered processes, trainers first, then by name, with and without a recent heartbeat."""
        ...

    def depths(self) -> StoreDepths:
        """Return the number of positions in each state, clients' own tasks included."""
        ...

    def disconnect(self) -> None:
        """Close the connection to the store."""
        ...
