"""An episode whose agent is elsewhere: while it is under way, and what its client sees of its end.

Invariant: its name is random, so that a client of an earlier server never hits another one's episode by accident.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ajet.rollout.assembly import Identity
from ajet.rollout.served.group import OpenGroup
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Episode

if TYPE_CHECKING:
    from ajet.gateway import Session


@dataclass(frozen=True, slots=True)
class ServedIdentity(Identity):
    """An episode with a name of its own."""

    name: str = ""

    @property
    def uuid(self) -> str:
        """Its name."""
        return self.name


@dataclass(slots=True, eq=False)
class Served:
    """An episode that is under way."""

    identity: ServedIdentity
    session: Session
    endpoint: Endpoint
    group: OpenGroup | None
    stopped: asyncio.Future[str]
    """Done, with the reason, when ajet ends it."""
    began: float = field(default_factory=time.time)
    ending: asyncio.Future[Episode] | None = None
    """None while it is open."""

    @property
    def quiet(self) -> float:
        """Seconds without a model call."""
        return time.time() - max(self.began, self.session.last_call)


def outcome_of(episode: Episode) -> dict[str, Any]:
    """What a client sees of one that has ended."""
    verdict, failure = episode.verdict, episode.failure
    reason = failure.message if failure else episode.metadata.get("aborted") or (verdict.reason if verdict else "")
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
