"""What verl's processes tell the one that the person started: episodes, steps, validations, checkpoints, processes; and
what that one answers: which tasks they are to play.

Invariant: only that process writes the run's record (one writer, one lock), wherever the others run; a letter is taken
once and in the order in which its sender sent it. Who asks for a ticket again gets the same answer, and once its group
has closed, the group. The mailbox is an actor that all of a run find by its name.
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
"""Letters taken at once, at most."""


@dataclass(frozen=True, slots=True)
class ProcessNotice:
    """A process of the run."""

    role: str
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class PhaseNotice:
    """The trainer's present phase."""

    name: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class TicketGrant:
    """The task and step that a ticket is for. The answer to `TicketAsked`."""

    order: int
    """The position in the training order."""
    task: Task
    group: Group | None = None
    """Where it was played already: to be handed over."""


@dataclass(frozen=True, slots=True)
class TicketRequest:
    """Somebody is about to play what this ticket is for."""

    ticket: int


@dataclass(frozen=True, slots=True)
class TicketFailure:
    """Whatever process plays this ticket's group dies of it."""

    ticket: int


@dataclass(frozen=True, slots=True)
class GroupNotice:
    """A group has closed, or one that had was handed over."""

    group: Group
    step: int
    """That asked for it."""
    ticket: int | None = None
    """None: of validation."""


@dataclass(frozen=True, slots=True)
class CreditEntry:
    """The credit of an episode in a step."""

    uuid: str
    outcome: Outcome
    trained: int
    """Tokens with a weight in the loss."""


@dataclass(frozen=True, slots=True)
class CreditNotice:
    """Credit was given to a step's episodes, by another process than its trainer, which has yet to train on them."""

    step: int
    credited: list[CreditEntry]
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class StepNotice:
    """A training step has ended."""

    step: int
    metrics: dict[str, float]
    """See `numbers_of`."""
    credited: list[CreditEntry] = field(default_factory=list)


def read_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The trainer's own metrics that are one number: Python's, numpy's and arrays of one."""
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
    """A process of the run died, and another took its place."""

    role: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointNotice:
    """verl has written a checkpoint into `folder`, on the trainer's node."""

    step: int
    folder: str


@dataclass(frozen=True, slots=True)
class ToolsNotice:
    """The tools that the run's first attempt was offered, as a request's `tools`."""

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
    """Lives in an actor; its methods run on one event loop."""

    def __init__(self) -> None:
        self._letters: asyncio.Queue[Notice] = asyncio.Queue()
        self._stop = False
        self._grants: dict[int, TicketGrant] = {}
        self._granted = 0
        self._tools: list[Any] | None = None
        self._more = asyncio.Condition()

    async def put(self, letters: list[Notice]) -> None:
        for letter in letters:
            if isinstance(letter, GroupNotice) and letter.ticket in self._grants:
                self._grants[letter.ticket] = replace(self._grants[letter.ticket], group=letter.group)
            self._letters.put_nowait(letter)

    async def grant(self, ticket: int) -> TicketGrant:
        """The grant of a ticket, once it is known."""
        self._letters.put_nowait(TicketRequest(ticket))
        async with self._more:
            await self._more.wait_for(lambda: ticket < self._granted)
        return self._grants[ticket]

    async def pin(self, found: list[Any]) -> list[Any]:
        """The run's tools: those that the first to ask has found."""
        if self._tools is None:
            self._tools = found
            self._letters.put_nowait(ToolsNotice(found))
        return self._tools

    async def know(self, grants: Sequence[TicketGrant], open: Collection[int]) -> None:
        """What the next tickets are for; of the earlier ones, only those of these positions are asked for again."""
        self._grants = {ticket: grant for ticket, grant in self._grants.items() if grant.order in open}
        async with self._more:
            self._grants.update(enumerate(grants, self._granted))
            self._granted += len(grants)
            self._more.notify_all()

    async def take(self, seconds: float) -> list[Notice]:
        """Some letters, or none after so many seconds."""
        try:
            taken = [await asyncio.wait_for(self._letters.get(), seconds)]
        except asyncio.TimeoutError:
            return []
        while len(taken) < BATCH and not self._letters.empty():
            taken.append(self._letters.get_nowait())
        return taken

    async def ask_to_stop(self) -> None:
        """The trainer shall end after its present step."""
        self._stop = True

    async def stopping(self) -> bool:
        return self._stop


def open_mailbox() -> Any:
    """The run's mailbox, made by the process that was started; gone with it."""
    import ray

    actor: Any = ray.remote(_Mailbox)
    return actor.options(name=NAME, num_cpus=0, max_concurrency=100_000).remote()


class Sender:
    """Posts letters from any process of the run."""

    def __init__(self) -> None:
        import ray

        self._box = ray.get_actor(NAME)

    def post(self, *letters: Notice) -> None:
        """Send without waiting. Thread-safe."""
        self._box.put.remote(list(letters))

    def post_and_wait(self, *letters: Notice) -> None:
        """Send, and return when they lie in the box."""
        import ray

        ray.get(self._box.put.remote(list(letters)))

    async def post_async(self, *letters: Notice) -> None:
        """Post letters, and wait until they are taken."""
        await self._box.put.remote(list(letters))

    async def grant(self, ticket: int) -> TicketGrant:
        """The grant of a ticket."""
        granted: TicketGrant = await self._box.grant.remote(ticket)
        return granted

    def pin(self, found: list[Any]) -> list[Any]:
        """The run's tools, whoever found them first."""
        import ray

        pinned: list[Any] = ray.get(self._box.pin.remote(found))
        return pinned

    def should_stop(self) -> bool:
        """Whether the run shall end."""
        import ray

        return bool(ray.get(self._box.stopping.remote()))

    def introduce(self, role: str) -> None:
        """Say who this process is."""
        import os
        import socket

        self.post(ProcessNotice(role, os.getpid(), socket.gethostname()))
