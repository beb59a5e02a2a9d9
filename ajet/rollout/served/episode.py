"""An episode of an external agent while it is under way, and how its client sees it.

Invariant: its name is random, so that a client of an earlier server never hits another client's episode by accident.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ajet.rollout.attempt import Identity
from ajet.rollout.served.groups import OpenGroup
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Episode
from ajet.schema.task import Task
from ajet.store import Lease

if TYPE_CHECKING:
    from ajet.gateway import Session


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """A client's request to begin an episode."""

    task: Task | None = None
    """None: the next task of the task reader, a held-out one if `held_out`."""
    agent: str = "default"
    trainable: tuple[str, ...] | None = None
    """Targets that train; None: all."""
    trains: bool = True
    """False: recorded only, sampled as the client asks, and part of no group."""
    held_out: bool = False
    """True: it does not train, and counts for a validation."""


@dataclass(frozen=True, slots=True)
class ServedIdentity(Identity):
    """The identity of an episode whose name, and group's name, are random."""

    name: str = ""
    group_name: str = ""

    @property
    def uuid(self) -> str:
        """The random name of the episode."""
        return self.name

    @property
    def group(self) -> str:
        """The name of its group, or its own name if it is in no group."""
        return self.group_name or self.name


@dataclass(slots=True, eq=False)
class ServedEpisode:
    """An episode that is under way."""

    identity: ServedIdentity
    session: Session
    endpoint: Endpoint
    lease: Lease
    group: OpenGroup | None
    stopped: asyncio.Future[str]
    """Done, with the reason, when ajet ends the episode."""
    is_probe: bool = False
    """True if it was admitted during an outage, to find out whether the outage goes on."""
    is_held_out_turn: bool = False
    """True if its task is one of the server's held-out ones, and the attempt counts as that task's turn."""
    began: float = field(default_factory=time.time)
    """Its start by the system clock, for the record."""
    since: float = field(default_factory=time.monotonic)
    """Its start by the monotonic clock, for limits."""
    ending: asyncio.Future[Episode] | None = None
    """The task that ends the episode; None while it is open."""
    built: Episode | None = None
    """The episode as it was judged and built; from then on only its recording is left to do."""
    ended_by: str = ""
    """Who ended it, once it is `built`."""
    unrecorded_since: float | None = None
    """When recording failed for the first time, by the monotonic clock; None if it did not."""

    @property
    def idle_seconds(self) -> float:
        """Seconds without a model call."""
        return time.monotonic() - max(self.since, self.session.last_call)


def describe_open(served: ServedEpisode, version: int) -> dict[str, Any]:
    """Return a client's view of an episode that is under way. `version` is the policy's."""
    return {
        "episode": served.identity.uuid,
        "status": "unrecorded" if served.unrecorded_since is not None else "judging" if served.ending else "open",
        "task_id": served.identity.task.task_id,
        "repeat": served.identity.repeat,
        "version": version,
    }


def describe_given_up(episode: Episode, reason: str) -> dict[str, Any]:
    """Return a client's view of an episode that was given up before its end could be recorded."""
    overrides = {"status": "aborted", "reward": None, "success": None, "boundary": None}
    return {**describe_outcome(episode), **overrides, "reason": f"{reason}: its end could not be recorded"}


def describe_outcome(episode: Episode) -> dict[str, Any]:
    """Return a client's view of an episode that has ended."""
    verdict, failure = episode.verdict, episode.failure
    reason = failure.message if failure else episode.ending or (verdict.reason if verdict else "")
    return {
        "episode": episode.uuid,
        "status": episode.status,
        "task_id": episode.task.task_id,
        "repeat": episode.repeat,
        "reward": episode.reward,
        "success": verdict.success if verdict else None,
        "reason": reason,
        "boundary": failure.boundary if failure else None,
        "calls": len(episode.calls),
        "sampled_tokens": episode.sampled_tokens,
        "seconds": round(episode.ended - episode.started, 3),
    }
