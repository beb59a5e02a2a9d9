"""Beginnings: an episode's identity, session and key, as its client is told them.

Invariant: a split is what the episode counts for: one that does not train is no part of the training split, and one
that is held out is a validation where anybody trains.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

from ajet.rollout.attempt import open_session
from ajet.rollout.checks import open_checks
from ajet.rollout.sampling import split_sampling
from ajet.rollout.served.episode import Opening, Served, ServedIdentity, shown
from ajet.rollout.served.group import OpenGroup
from ajet.schema.episode import Split
from ajet.schema.task import Task
from ajet.store import Lease

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.gateway import Gateway


class Beginnings:
    """Begins the episodes of one desk, each on its loop."""

    def __init__(self, gateway: Gateway, settings: AjetConfig, *, run_id: str, split: Split, trained_on: bool) -> None:
        """`trained_on`: there are groups, and a trainer that takes them."""
        self._gateway, self._settings, self._run_id, self._split = gateway, settings, run_id, split
        self._trained_on = trained_on
        self._inspect = open_checks(settings.rollout.compute_madness_checklist)

    def begin(
        self, opening: Opening, task: Task, group: OpenGroup | None, lease: Lease, repeat: int, *, probe: bool,
        given: bool, version: int,
    ) -> Served:  # fmt: skip
        """Begin an episode with its session and key. `probe`: it is the breaker's; `given`: the task is one of the
        server's held-out ones; `version`: of the policy. Raises Refused."""
        split: Split = self._split if opening.trains else "debug"
        if opening.held_out and self._trained_on:
            split = "validation"
        step = version + 1 if self._trained_on else 0
        named, order = group.name if group is not None else "", lease.order
        identity = ServedIdentity(self._run_id, split, step, task, order, order, repeat, uuid.uuid4().hex, named)
        began = time.time()
        session = open_session(
            self._gateway,
            self._settings,
            self._inspect,
            identity,
            sampling=split_sampling(self._settings, "validation" if given else "train"),
            trainable=opening.trainable if opening.trains else (),
            began=began,
        )
        endpoint = session(opening.agent, opening.agent, None)
        stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return Served(identity, session, endpoint, lease, group, stopped, probe=probe, given=given, began=began)


def told(served: Served, version: int) -> dict[str, Any]:
    """The answer to the client that began the episode."""
    endpoint = served.endpoint
    return {
        **shown(served, version),
        "task": served.identity.task.model_dump(),
        "base_url": endpoint.base_url,
        "path_base_url": f"{endpoint.base_url.removesuffix('/v1')}/s/{endpoint.api_key}/v1",
        "api_key": endpoint.api_key,
        "model": endpoint.model,
    }
