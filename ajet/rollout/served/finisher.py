"""Finishes episodes of external agents: closes the session, calls the judge, builds and records the episode.

Invariants: an episode is judged and built once, and the result is stored with the episode. Recording may fail and be
repeated. The server acknowledges no end to a client before the end is on the disk.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol

from loguru import logger

from ajet.gateway import Refused
from ajet.rollout.attempt import AttemptResult, call_on_gateway
from ajet.rollout.episode import EpisodeBuilder
from ajet.rollout.failure import find_failure
from ajet.rollout.judge_caller import JudgeCaller
from ajet.rollout.served.episode import ServedEpisode
from ajet.rollout.served.groups import call_store
from ajet.rollout.served.ranker import WAITING_REASON
from ajet.schema.episode import Episode, Verdict
from ajet.schema.errors import UserError
from ajet.store import TRANSIENT_ERRORS, Kept, Lease, LeaseLostError

if TYPE_CHECKING:
    from ajet.gateway import Gateway


class EpisodeStore(Protocol):
    """Stores ended episodes before their clients get an acknowledgement."""

    def put(self, lease: Lease, kept: Kept) -> None:
        """Store an episode. The episode is on the disk when the call returns. Thread-safe.

        Args:
            lease: The lease of the episode's position in the training order.
            kept: The episode, with the facts that the store adds to it.

        Raises:
            LeaseLostError: The lease belongs to another server.
            Exception: One of TRANSIENT_ERRORS. The same call may succeed later.
        """


class EpisodeFinisher:
    """Judges and records the episodes of one registry. Callers await the methods on the registry's loop."""

    def __init__(
        self,
        gateway: Gateway,
        judge_caller: JudgeCaller,
        builder: EpisodeBuilder,
        store: EpisodeStore | None,
        *,
        ranks: bool = False,
    ) -> None:
        """Prepare the finisher.

        Args:
            store: The episode store. None: ended episodes are not recorded.
            ranks: True if attempts of a group get verdicts together, once all are in.
        """
        self._ranks = ranks
        self._gateway = gateway
        self._judge_caller = judge_caller
        self._builder = builder
        self._store = store

    async def judge_episode(self, served: ServedEpisode, result: AttemptResult) -> Episode:
        """Close the session, get the verdict and build the episode."""
        result.capture = await call_on_gateway(self._gateway, served.session.close)
        result.started, result.ended = served.began, time.time()
        if not result.aborted:
            result.failure = find_failure(result.capture, result.failure)
        if self._ranks and served.group is not None and self._judge_caller.needs_ranking(result):
            verdict: Verdict | None = Verdict(None, None, WAITING_REASON)
        else:
            verdict = await self._judge_caller.judge_attempt(served.identity, result, served.stopped)
        return await self._builder.build(served.identity, result, verdict, served.stopped)

    async def record_episode(self, served: ServedEpisode) -> None:
        """Write the built episode to the disk. Raises Refused if writing is not possible now."""
        if self._store is None:
            return
        assert served.built is not None
        record = Kept(served.built, alone=served.group is None, ended_by=served.ended_by)
        try:
            await call_store(self._store.put, served.lease, record)
        except LeaseLostError as lost:
            if served.unrecorded_since is None:
                served.unrecorded_since = time.monotonic()
                logger.warning("the outcome of episode {} does not count: {}", served.built.uuid, lost)
            raise Refused(
                "Another server has leased this episode's task meanwhile, so the outcome of this episode does "
                "not count.",
                status=409,
                code="place_lost",
            ) from lost
        except TRANSIENT_ERRORS as error:
            if served.unrecorded_since is None:
                served.unrecorded_since = time.monotonic()
                logger.warning(
                    "the outcome of episode {} is not recorded yet, because the store did not accept it: {}",
                    served.built.uuid,
                    error,
                )
            raise Refused(
                f"The episode's outcome could not be recorded: {_describe_error(error)} Send the same request again.",
                status=503,
                code="not_recorded",
                retry_after=1,
            ) from error


def _describe_error(error: Exception) -> str:
    """Describe a store's error for a client, without the paths of this machine."""
    if isinstance(error, UserError):
        return error.what
    number = error.errno if isinstance(error, OSError) else None
    return f"{os.strerror(number) if number else type(error).__name__}."
