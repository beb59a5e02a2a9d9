"""Notices from verl's processes to the run's own process, and grants of tasks in the other direction.

A notice is a message about an event: an episode, a step, a validation, a checkpoint or a process. A ticket is the
trainer's claim on one group, and a grant is the task of a ticket. Invariant: only the run's own process writes the
record, which is the run's folder on disk (a single writer with a lock). A notice is taken once and in its sender's
order. A repeated ticket request gets the same grant, and after the group has finished, the group. The mailbox is a Ray
actor, found by name.
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
"""Maximum number of notices that the listener reads at once."""


@dataclass(frozen=True, slots=True)
class ProcessNotice:
    """A process of the run started."""

    role: str
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class PhaseNotice:
    """The trainer entered a phase, such as loading."""

    name: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class TicketGrant:
    """The task of a ticket (the trainer's claim on a group), in answer to `TicketRequest`."""

    order: int
    """The task's place in the training order ("position")."""
    task: Task
    group: Group | None = None
    """The finished group, if an earlier launch or request played it already."""


@dataclass(frozen=True, slots=True)
class TicketRequest:
    """A process requests the task of a ticket (the trainer's claim on a group), and will run the task's episodes."""

    ticket: int


@dataclass(frozen=True, slots=True)
class TicketFailure:
    """Every process that ran the episodes of a ticket's group died. A ticket is the trainer's claim on a group."""

    ticket: int


@dataclass(frozen=True, slots=True)
class GroupNotice:
    """A group was finished, or a group finished by an earlier launch was handed to the trainer."""

    group: Group
    step: int
    """The training step that requested the group."""
    ticket: int | None = None
    """Ticket of the group, or None for validation."""


@dataclass(frozen=True, slots=True)
class CreditEntry:
    """How a training step used one episode."""

    uuid: str
    """Id of the episode."""
    outcome: Outcome
    """The episode's advantage, and the numbers of untrained tokens by reason."""
    trained: int
    """Tokens with a weight in the loss."""


@dataclass(frozen=True, slots=True)
class CreditNotice:
    """The advantages of a step's episodes, computed before the step in a process other than the trainer's."""

    step: int
    credited: list[CreditEntry]
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class StepNotice:
    """A training step ended."""

    step: int
    metrics: dict[str, float]
    """Scalar metrics returned by `read_numbers`."""
    credited: list[CreditEntry] = field(default_factory=list)
    """The use of each episode of the step."""


def read_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are scalars, as floats: numbers of Python or numpy, and numpy arrays of size one.

    Strings, lists, larger arrays and torch tensors are left out.
    """
    # A torch tensor's `size` is a method, which equals no number. The default 2 excludes objects without a size.
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, numbers.Real) or (hasattr(value, "item") and getattr(value, "size", 2) == 1)
    }


@dataclass(frozen=True, slots=True)
class ValidationNotice:
    """The episodes of all validation tasks ended, with the weights after `step` steps."""

    step: int
    seconds: float
    """Duration of the validation."""


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
    """The tools offered to the run's first attempt, in the format of `tools` in a chat completion request."""

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
    """The Ray actor that queues notices for the run's own process, and stores the tasks that it grants.

    All methods run on one event loop.
    """

    def __init__(self) -> None:
        self._notices: asyncio.Queue[Notice] = asyncio.Queue()
        self._should_stop = False
        self._grants: dict[int, TicketGrant] = {}
        self._granted_tickets = 0
        """Number of tickets granted so far. Tickets are granted in the order of their numbers."""
        self._tools: list[Any] | None = None
        self._tickets_granted = asyncio.Condition()

    async def put(self, letters: list[Notice]) -> None:
        """Queue notices for the run's own process.

        A finished training group is also stored under its ticket, the trainer's claim on the group, so that a repeated
        request of the ticket gets the group.
        """
        for letter in letters:
            if isinstance(letter, GroupNotice) and letter.ticket in self._grants:
                self._grants[letter.ticket] = replace(self._grants[letter.ticket], group=letter.group)
            self._notices.put_nowait(letter)

    async def grant(self, ticket: int) -> TicketGrant:
        """Request the task of a ticket (the trainer's claim on a group) from the run's process, and wait for it."""
        self._notices.put_nowait(TicketRequest(ticket))
        async with self._tickets_granted:
            # Grants arrive in ticket order, so the count shows whether this ticket has one.
            await self._tickets_granted.wait_for(lambda: ticket < self._granted_tickets)
        return self._grants[ticket]

    async def pin(self, found: list[Any]) -> list[Any]:
        """Return the tools passed in the first call, which every later attempt of the run must be offered.

        The first call also notifies the run's own process of them.

        Args:
            found: the tools found by the caller, in the format of a request's `tools`.
        """
        if self._tools is None:
            self._tools = found
            self._notices.put_nowait(ToolsNotice(found))
        return self._tools

    async def know(self, grants: Sequence[TicketGrant], open: Collection[int]) -> None:
        """Add the tasks of the next tickets, and drop stored ones that no process can need any more.

        A ticket is the trainer's claim on a group, a grant the task of a ticket.

        Args:
            grants: grants of the tickets that follow the last granted one, in order.
            open: places in the training order that were granted and that no step has taken; their grants stay.
        """
        self._grants = {ticket: grant for ticket, grant in self._grants.items() if grant.order in open}
        async with self._tickets_granted:
            self._grants.update(enumerate(grants, self._granted_tickets))
            self._granted_tickets += len(grants)
            self._tickets_granted.notify_all()

    async def take(self, seconds: float) -> list[Notice]:
        """Return up to 256 queued notices, after waiting up to `seconds` for the first, or [] if none came."""
        try:
            letters = [await asyncio.wait_for(self._notices.get(), seconds)]
        except TimeoutError:
            return []
        while len(letters) < BATCH and not self._notices.empty():
            letters.append(self._notices.get_nowait())
        return letters

    async def ask_to_stop(self) -> None:
        """Tell the trainer, which polls `stopping`, to end after its present step."""
        self._should_stop = True

    async def stopping(self) -> bool:
        """Return True if the trainer should end after its present step."""
        return self._should_stop


def open_mailbox() -> Any:
    """Start the Ray actor of the run's mailbox, and return its handle. It ends with the calling process."""
    import ray

    actor: Any = ray.remote(_Mailbox)
    # Each process that waits for a grant occupies one concurrent call of the actor.
    return actor.options(name=NAME, num_cpus=0, max_concurrency=100_000).remote()


class Sender:
    """Sends notices, such as episodes and steps, from any process of the run to the run's own process."""

    def __init__(self) -> None:
        """Find the run's mailbox by its name. Raises ValueError if the run has not opened it."""
        import ray

        self._mailbox = ray.get_actor(NAME)

    def post(self, *letters: Notice) -> None:
        """Send notices without waiting for their delivery. Thread-safe."""
        self._mailbox.put.remote(list(letters))

    def post_and_wait(self, *letters: Notice) -> None:
        """Send notices and block until the mailbox has them."""
        import ray

        ray.get(self._mailbox.put.remote(list(letters)))

    async def post_async(self, *letters: Notice) -> None:
        """Send notices and await their delivery to the mailbox."""
        await self._mailbox.put.remote(list(letters))

    async def grant(self, ticket: int) -> TicketGrant:
        """Request the task of a ticket (the trainer's claim on a group) from the run's process, and wait for it."""
        granted: TicketGrant = await self._mailbox.grant.remote(ticket)
        return granted

    def pin(self, found: list[Any]) -> list[Any]:
        """Return the tools that the run's first attempt was offered. They are `found` in the first call.

        Args:
            found: the tools found by this attempt, in the format of a request's `tools`.
        """
        import ray

        pinned: list[Any] = ray.get(self._mailbox.pin.remote(found))
        return pinned

    def should_stop(self) -> bool:
        """True if the trainer should end the run after its present step."""
        import ray

        return bool(ray.get(self._mailbox.stopping.remote()))

    def introduce(self, role: str) -> None:
        """Send a notice with the current process's role, id and host."""
        import os
        import socket

        self.post(ProcessNotice(role, os.getpid(), socket.gethostname()))
