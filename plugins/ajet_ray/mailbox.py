"""Notices from verl's processes to the run's own process, and grants of tasks in the other direction.

A notice is a message about an event: an episode, a step, a validation, a checkpoint or a process. A ticket is the
trainer's claim on one group, and a grant is the task of a ticket. Invariant: only the run's own process writes the
record (a single writer with a lock). A notice is taken once and in its sender's order. A repeated ticket request gets
the same grant, and after the group closed, the group. The mailbox is an actor, found by name.
"""

from __future__ import annotations

import asyncio
import numbers
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.schema.episode import Group, Outcome
    from ajet.schema.task import Task

NAME = "ajet-mailbox"
BATCH = 256
"""Largest number of notices taken at once."""


@dataclass(frozen=True, slots=True)
class ProcessNotice:
    """A process of the run started."""

    role: str
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class PhaseNotice:
    """The trainer entered a phase."""

    name: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class TicketGrant:
    """The task of a ticket, in answer to `TicketRequest`."""

    order: int
    """The position in the training order."""
    task: Task
    group: Group | None = None
    """The finished group, if an earlier launch or request played it already."""


@dataclass(frozen=True, slots=True)
class TicketRequest:
    """A process requests the task of the ticket, and will play it."""

    ticket: int


@dataclass(frozen=True, slots=True)
class TicketFailure:
    """The ticket's group killed every process that played the group."""

    ticket: int


@dataclass(frozen=True, slots=True)
class GroupNotice:
    """A group was finished, or a finished group was handed over."""

    group: Group
    step: int
    """The training step with the request for the group."""
    ticket: int | None = None
    """Ticket of the group, or None for validation."""


@dataclass(frozen=True, slots=True)
class CreditEntry:
    """What a training step made of one episode: its outcome (advantages, or why it is untrained) and trained tokens."""

    uuid: str
    outcome: Outcome
    trained: int
    """Tokens with a weight in the loss."""


@dataclass(frozen=True, slots=True)
class CreditNotice:
    """A step's credit, assigned by another process before its trainer trains."""

    step: int
    credited: list[CreditEntry]
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class StepNotice:
    """Reports the end of a training step."""

    step: int
    metrics: dict[str, float]
    """Scalar metrics returned by `read_numbers`."""
    credited: list[CreditEntry] = field(default_factory=list)


def read_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the trainer's scalar metrics: Python's, numpy's and arrays of size one."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, numbers.Real) or (hasattr(value, "item") and getattr(value, "size", 2) == 1)
    }


@dataclass(frozen=True, slots=True)
class ValidationNotice:
    """All validation tasks were played after `step` steps."""

    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DeathNotice:
    """A process of the run died and was replaced."""

    role: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointNotice:
    """verl wrote a checkpoint into `folder`, on the trainer's node."""

    step: int
    folder: str


@dataclass(frozen=True, slots=True)
class ToolsNotice:
    """The tools offered to the run's first attempt, as a request's `tools`."""

    tools: list[Any]


Notice = (
    ProcessNotice
    | ToolsNotice
    | PhaseNotice
    | TicketRequest
    | GroupNotice
    | TicketFailure
    | CreditNotice
    | StepNotice
    | ValidationNotice
    | CheckpointNotice
    | DeathNotice
)


class _Mailbox:
    """The mailbox actor: collects notices, and grants of tickets. All methods run on one event loop."""

    def __init__(self) -> None:
        self._letters: asyncio.Queue[Notice] = asyncio.Queue()
        self._stop = False
        self._grants: dict[int, TicketGrant] = {}
        self._granted = 0
        self._tools: list[Any] | None = None
        self._more = asyncio.Condition()

    async def put(self, letters: list[Notice]) -> None:
        """Queue notices for the trainer. A closed group is also stored in its ticket's grant."""
        for letter in letters:
            if isinstance(letter, GroupNotice) and letter.ticket in self._grants:
                self._grants[letter.ticket] = replace(self._grants[letter.ticket], group=letter.group)
            self._letters.put_nowait(letter)

    async def grant(self, ticket: int) -> TicketGrant:
        """Wait for a ticket's grant and return the grant."""
        self._letters.put_nowait(TicketRequest(ticket))
        async with self._more:
            await self._more.wait_for(lambda: ticket < self._granted)
        return self._grants[ticket]

    async def pin(self, found: list[Any]) -> list[Any]:
        """Return the tools found by the first caller, for all callers."""
        if self._tools is None:
            self._tools = found
            self._letters.put_nowait(ToolsNotice(found))
        return self._tools

    async def know(self, grants: Sequence[TicketGrant], open: Collection[int]) -> None:
        """Add the grants of the next tickets, and drop earlier grants of positions that are not `open`."""
        self._grants = {ticket: grant for ticket, grant in self._grants.items() if grant.order in open}
        async with self._more:
            self._grants.update(enumerate(grants, self._granted))
            self._granted += len(grants)
            self._more.notify_all()

    async def take(self, seconds: float) -> list[Notice]:
        """Return some notices, or none after `seconds`."""
        try:
            taken = [await asyncio.wait_for(self._letters.get(), seconds)]
        except TimeoutError:
            return []
        while len(taken) < BATCH and not self._letters.empty():
            taken.append(self._letters.get_nowait())
        return taken

    async def ask_to_stop(self) -> None:
        """Ask the trainer to end after its present step."""
        self._stop = True

    async def stopping(self) -> bool:
        """Return True if the trainer should end after its present step."""
        return self._stop


def open_mailbox() -> Any:
    """Make the run's mailbox. The actor ends with the calling process."""
    import ray

    actor: Any = ray.remote(_Mailbox)
    return actor.options(name=NAME, num_cpus=0, max_concurrency=100_000).remote()


class Sender:
    """Sends notices (episodes, steps, checkpoints, …) from any process of the run to the run's own process."""

    def __init__(self) -> None:
        import ray

        self._box = ray.get_actor(NAME)

    def post(self, *letters: Notice) -> None:
        """Send notices without waiting for their delivery. Thread-safe."""
        self._box.put.remote(list(letters))

    def post_and_wait(self, *letters: Notice) -> None:
        """Send notices and block until the mailbox has them."""
        import ray

        ray.get(self._box.put.remote(list(letters)))

    async def post_async(self, *letters: Notice) -> None:
        """Send notices and await their delivery to the mailbox."""
        await self._box.put.remote(list(letters))

    async def grant(self, ticket: int) -> TicketGrant:
        """Wait for a ticket's grant and return the grant."""
        granted: TicketGrant = await self._box.grant.remote(ticket)
        return granted

    def pin(self, found: list[Any]) -> list[Any]:
        """Return the run's tools, found by the first caller."""
        import ray

        pinned: list[Any] = ray.get(self._box.pin.remote(found))
        return pinned

    def should_stop(self) -> bool:
        """True if the run shall end."""
        import ray

        return bool(ray.get(self._box.stopping.remote()))

    def introduce(self, role: str) -> None:
        """Send a notice with the current process's role, id and host."""
        import os
        import socket

        self.post(ProcessNotice(role, os.getpid(), socket.gethostname()))
