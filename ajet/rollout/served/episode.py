"""An open episode of an external agent, and the client's view of the episode.

Invariant: an episode's name is random. A client of an earlier server never reaches another client's episode by
accident.
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
    """None: the next task of the task reader, a held-out task if `held_out`."""
    agent: str = "default"
    trainable: tuple[str, ...] | None = None
    """Targets to train. None: all targets."""
    trains: bool = True
    """False if the episode is only recorded. The client then chooses the sampling, and no group contains the
    episode.
    """
    held_out: bool = False
    """True if the episode does not train and counts for a validation."""


@dataclass(frozen=True, slots=True)
class ServedIdentity(Identity):
    """The identity of an episode. The episode and the group have random names."""

    name: str = ""
    group_name: str = ""

    @property
    def uuid(self) -> str:
        """The random name of the episode."""
        return self.name

    @property
    def group(self) -> str:
        """The group's name, or the episode's own name without a group."""
        return self.group_name or self.name


@dataclass(slots=True, eq=False)
class ServedEpisode:
    """An episode opened by an external agent and not ended yet."""

    identity: ServedIdentity
    session: Session
    endpoint: Endpoint
    lease: Lease
    group: OpenGroup | None
    stopped: asyncio.Future[str]
    """Done, with the reason, when ajet ends the episode."""
    is_probe: bool = False
    """True if the episode was admitted during an outage, to test whether the outage is over."""
    is_held_out_turn: bool = False
    """True if the task is one of the server's held-out tasks and the attempt counts as the task's turn."""
    began: float = field(default_factory=time.time)
    """Start by the system clock, for the record"""
    since: float = field(default_factory=time.monotonic)
    """Start by the monotonic clock, for limits"""
    ending: asyncio.Future[Episode] | None = None
    """The task that ends the episode. None while the episode is open."""
    built: Episode | None = None
    """The judged and built episode. After that only recording remains."""
    ended_by: str = ""
    """The party that ended the episode, once the episode is `built`."""
    unrecorded_since: float | None = None
    """Time of the first failed recording, by the monotonic clock. None if recording did not fail."""

    @property
    def idle_seconds(self) -> float:
        """Seconds without a model call."""
        return time.monotonic() - max(self.since, self.session.last_call)


def describe_open(served: ServedEpisode, version: int) -> dict[str, Any]:
    """Return the JSON reply on an open episode. `version` is the policy's version."""
    return {
        "episode": served.identity.uuid,
        "status": "unrecorded" if served.unrecorded_since is not None else "judging" if served.ending else "open",
        "task_id": served.identity.task.task_id,
        "repeat": served.identity.repeat,
        "version": version,
    }


def describe_given_up(episode: Episode, reason: str) -> dict[str, Any]:
    """Return the JSON reply on an episode that was dropped, because its end could not be recorded."""
    overrides = {"status": "aborted", "reward": None, "success": None, "boundary": None}
    return {
        **describe_outcome(episode),
        **overrides,
        "reason": f"{reason}: the episode's outcome could not be recorded",
    }


def describe_outcome(episode: Episode) -> dict[str, Any]:
    """Return the JSON reply on an ended episode."""
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
