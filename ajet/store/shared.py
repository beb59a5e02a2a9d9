"""What a store promises that many processes share, on top of `Store`; tests/contract/test_shared_stores.py holds each
to it.

Invariant: one process trains, the one that opened the store last with `rolls`: whoever opened it so before is refused
(`TrainerFencedError`). Whoever plays a position says so again within the time of its lease, by the clock of the store
and not by its own; the lease of one that falls silent ends, and so often and no more is the position given out again:
then it lies with the dead letters, with what went wrong each time, and the order goes on without it. What the trainer
holds itself ends with the next trainer."""

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
    """Somebody else trains on the store by now, or this process opened it without `rolls`."""


def fenced_trainer_error(where: str, own: int, latest: int) -> TrainerFencedError:
    """The error for a process that is trainer number `own` (0: none) and not the latest."""
    if not own:
        return TrainerFencedError("This process does not train on the store: it opened it to play.", where=where)
    return TrainerFencedError(
        f"Another trainer has taken over this run's store: it is number {latest}, this one was number {own}.",
        where=where,
        expected="one trainer on a store; nothing that this one did since its last checkpoint counts",
        do="Let the other one go on, or end it and start this run again.",
    )


def other_run_error(where: str) -> UserError:
    """The error for a trainer that opens the store of another run."""
    return UserError(
        "The store is the ledger of another run.",
        where=where,
        expected="an empty one, or that of this run",
        do="Name another in store.uri or --from-store, or remove this one if its run is of no use any more.",
    )


def other_version_error(where: str, found: int, known: int) -> StoreUnavailableError:
    """The error for a store of another version than the one that is `known` here."""
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
    """The error for a trainer whose checkpoint the store never heard of."""
    return UserError(
        "The checkpoint that this run goes on from was made with another store.",
        where=where,
        expected="the store that the run had then",
        do=f"Set store.type and store.uri, or --from-store, as they were; or, with an empty one named "
        f"there, {FRESH_ADVICE}.",
    )


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The process that opens a store."""

    lease_seconds: float = LEASE_SECONDS
    """How long what it leases is its own without a word."""
    max_attempts: int = MAX_ATTEMPTS
    """After so many that failed a position is dead."""
    rolls: bool = False
    """Whether it trains: then what it opens is what the checkpoint `at` says (None: that there is none)."""
    at: Mapping[str, Any] | None = None
    run: str = ""
    """The identity of the run whose ledger it is, once one trained."""
    settings: str = ""
    """The run's resolved YAML, which the trainer leaves for who has the store alone; "": it leaves what is there."""
    redact: Redactor | None = None
    """None: nothing is hidden."""
    unreachable_timeout: float = UNREACHABLE_TIMEOUT
    """Seconds that an operation waits for a store that is out of reach, once it was opened."""
    usable: Usable | None = None
    """Whether what was put of a position may be used at that checkpoint; what may not is removed, and the position
    played anew. None: all may."""


TASKS_KEY = "count"
"""Told with a policy: how many tasks an epoch has."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Which weights samplers are to play with."""

    run: str
    step: int
    weights: str
    """Where they are: a folder or an address."""
    lineage: str = ""
    """Fingerprint of what they were trained from; so are the other two, of the tokenizer and of the chat template. A
    sampler that has others is refused."""
    tokenizer: str = ""
    template: str = ""
    below: int | None = None
    """Positions from here on are not to be played yet; None: all may be."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """More that the trainer says, as JSON values."""


@dataclass(frozen=True, slots=True)
class AnnouncedPolicy:
    """A policy as it was announced. The later one is that of the higher (trainer, step)."""

    policy: Policy
    trainer: int
    """Which trainer of the store it was, counted from 1."""
    age: float
    """Seconds since, by the clock of the store."""


@dataclass(frozen=True, slots=True)
class StoreMember:
    """A process that says it is there."""

    role: Role
    name: str
    age: float
    """Seconds since it last said so, by the clock of the store."""
    joined: float
    """Seconds since it first did."""
    leases: int
    """Positions that it holds."""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A position that is given out no more."""

    order: int
    reasons: tuple[str, ...]
    """Of each attempt, the first one first."""
    ends: int
    """Episodes that were put of it."""


@dataclass(frozen=True, slots=True)
class StoreDepths:
    """The number of positions in each state. `over` are those that are still kept."""

    waiting: int = 0
    leased: int = 0
    closed: int = 0
    """That no step has used."""
    again: int = 0
    """Closed ones that a step has used and another may."""
    over: int = 0
    dead: int = 0
    next: int = 0
    """The first position of the order that nobody ever had."""
    oldest_lease: float | None = None
    """Seconds since the one that is leased longest was, by the clock of the store; None: nothing is."""
    oldest_closed: float | None = None
    """The same of `closed`: since the group closed that waits longest."""


class SharedStore(Store, Protocol):
    """Thread-safe. Every method raises StoreUnavailableError where the store cannot be reached. `use`, `discard`,
    `commit` and `forget` are the trainer's: they raise TrainerFencedError."""

    def lease(self, count: int, *, below: int | None = None) -> list[Lease]:
        """Lease as `Store` says; `below`: of the positions that nobody ever had, only those before this one."""
        ...

    def closed(self, count: int | None = None, *, but: Collection[int] = ()) -> list[Lease]:
        """The first `count` positions that are closed and not over, without `but`, in order."""
        ...

    def use(
        self, orders: Iterable[int], step: int, *, again: Collection[int] = (), advantages: Mapping[str, float] = NONE
    ) -> None:
        """Use as `Store` says; `advantages`: by uuid, what that update gave episodes of theirs, for who reads the
        database: the store reads none of it back."""
        ...

    def renew(self, leases: Iterable[Lease]) -> None:
        """Renew leases that are still being played: each is renewed that can be. Raises LeaseLostError that names the
        others."""
        ...

    def fail(self, lease: Lease, reason: str) -> None:
        """Fail a position that could not be played, and not because its player had to stop (`give_back`). Raises
        LeaseLostError."""
        ...

    def quarantine(self, order: int, reason: str) -> None:
        """Set a closed position aside: it stays in the store, and nobody trains on it or leases it. Raises
        TrainerFencedError; LeaseLostError for one that is not closed."""
        ...

    def dead(self) -> list[DeadLetter]:
        """The dead letters, in order."""
        ...

    def revive(self, order: int) -> None:
        """Give it out again, with all attempts before it, and without what was put of it where that was changed. Raises
        LeaseLostError for one that is not dead."""
        ...

    def announce(self, policy: Policy) -> None:
        """The trainer's: from now on this one is to be played with. Raises TrainerFencedError."""
        ...

    def announced(self) -> AnnouncedPolicy | None:
        """The policy that was announced last; None: nothing yet."""
        ...

    def join(self, role: Role, name: str, details: Mapping[str, Any] | None = None) -> None:
        """This process is there, under a name of its own; again says that it still is. Leases that it takes from now
        on are known as its."""
        ...

    def leave(self) -> None:
        """Take this process out of those that take part."""
        ...

    def members(self) -> list[StoreMember]:
        """Trainers first, then by name; also those that fell silent."""
        ...

    def depths(self) -> StoreDepths:
        """Without reading an episode."""
        ...

    def disconnect(self) -> None:
        """Let go of the database."""
        ...
