"""Ranking: the attempts at one task wait for each other, and get their verdicts together.

Invariants: it is asked once all attempts of the group are in or have ended otherwise, and about those that are in;
each of them gets a verdict, or the same failure. Who waits holds neither a place to play in nor an environment, and
until the asking begins it is not under way for the breaker, which may hold back the attempt that it waits for. An
attempt that is played again comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.rollout.failure import classify
from ajet.schema.episode import Failure, Verdict
from ajet.schema.task import WorkflowOutput, WorkflowTask

if TYPE_CHECKING:
    from ajet.rollout.breaker import Turn


@dataclass(frozen=True, slots=True)
class Arrived:
    """An attempt that is to be compared."""

    task: WorkflowTask
    output: WorkflowOutput


Ask = Callable[[Mapping[int, Arrived]], Awaitable[Mapping[int, Verdict]]]
"""Verdicts of attempts, both by repeat."""


class Ranking:
    """Ranks the attempts of one group; lives on the rollout's loop."""

    def __init__(self, repeats: int, ask: Ask, on_arrival: Callable[[], None]) -> None:
        """`on_arrival` is told when another one waits."""
        self._repeats, self._ask, self._on_arrival = repeats, ask, on_arrival
        self._waiting: dict[int, tuple[Arrived, asyncio.Future[Verdict | Failure], Turn]] = {}
        self._over: set[int] = set()
        self._asking: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Attempts that are in and have no verdict yet."""
        return len(self._waiting)

    def of(self, repeat: int, arrived: Arrived, turn: Turn) -> asyncio.Future[Verdict | Failure]:
        """An attempt is in; what it gets."""
        told: asyncio.Future[Verdict | Failure] = asyncio.get_running_loop().create_future()
        self._waiting[repeat] = (arrived, told, turn)
        self._on_arrival()
        self._look()
        if self._asking is None:
            turn.leave()
        return told

    def over(self, repeat: int) -> None:
        """An attempt is concluded, with a verdict or without."""
        self._over.add(repeat)
        self._waiting.pop(repeat, None)
        self._look()

    def _look(self) -> None:
        if self._waiting and len(self._waiting.keys() | self._over) >= self._repeats and self._asking is None:
            self._asking = asyncio.ensure_future(self._settle())
            for _, _, turn in self._waiting.values():
                turn.back()

    async def _settle(self) -> None:
        waiting = dict(self._waiting)
        try:
            verdicts = await self._ask({repeat: waiting[repeat][0] for repeat in sorted(waiting)})
            results: Mapping[int, Verdict | Failure] = verdicts
        except Exception as problem:  # noqa: BLE001 - the border where a judge's failure becomes data
            failure = classify(problem, "judge")
            results = dict.fromkeys(waiting, failure)
        finally:
            self._asking = None
            for repeat in waiting:
                self._waiting.pop(repeat, None)
        for repeat, (_, told, _) in waiting.items():
            if not told.done():
                told.set_result(results[repeat])
        self._look()
