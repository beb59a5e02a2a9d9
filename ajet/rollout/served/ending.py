"""The end of an episode: its session is closed, it is judged, built, and stored where a kill cannot take it.

Invariant: judging happens once and its outcome is kept on the episode; recording may fail and be done again, and an
end that is not recorded is told to nobody as one.
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
from ajet.rollout.served.episode import ServedEpisode
from ajet.rollout.served.ranking import WAITS
from ajet.rollout.served.store_calls import ask_store
from ajet.rollout.verdicts import Verdicts
from ajet.schema.episode import Episode, Verdict
from ajet.schema.errors import UserError
from ajet.store import CANNOT_NOW, Kept, Lease, LeaseLost

if TYPE_CHECKING:
    from ajet.gateway import Gateway


class Keeper(Protocol):
    """The place where ends go before they are acknowledged."""

    def put(self, lease: Lease, kept: Kept) -> None:
        """Keep one. On return it is on the disk. Raises one of CANNOT_NOW, and then it may be put again; LeaseLost.
        Thread-safe."""


class Endings:
    """Ends the episodes of one desk; awaited on its loop."""

    def __init__(
        self,
        gateway: Gateway,
        verdicts: Verdicts,
        builder: EpisodeBuilder,
        keeper: Keeper | None,
        *,
        ranks: bool = False,
    ) -> None:
        """`ranks`: attempts of a group get their verdicts together, later."""
        self._ranks = ranks
        self._gateway, self._verdicts, self._builder, self._keeper = gateway, verdicts, builder, keeper

    async def judge(self, served: ServedEpisode, played: AttemptResult) -> Episode:
        """Close its session, ask for its verdict, build it."""
        played.capture = await call_on_gateway(self._gateway, served.session.close)
        played.started, played.ended = served.began, time.time()
        if not played.aborted:
            played.failure = find_failure(played.capture, played.failure)
        if self._ranks and served.group is not None and self._verdicts.ranks(played):
            verdict: Verdict | None = Verdict(None, None, WAITS)
        else:
            verdict = await self._verdicts.of(served.identity, played, served.stopped)
        return await self._builder.build(served.identity, played, verdict, served.stopped)

    async def record(self, served: ServedEpisode) -> None:
        """Put it on the disk. Raises Refused where that cannot be done now."""
        if self._keeper is None:
            return
        assert served.made is not None
        kept = Kept(served.made, alone=served.group is None, ended_by=served.ended_by)
        try:
            await ask_store(self._keeper.put, served.lease, kept)
        except LeaseLost as lost:
            if served.unrecorded is None:
                served.unrecorded = time.monotonic()
                logger.warning("the end of episode {} counts nowhere: {}", served.made.uuid, lost)
            raise Refused(
                "The episode's place is another server's by now: its end counts nowhere.",
                status=409,
                code="place_lost",
            ) from lost
        except CANNOT_NOW as error:
            if served.unrecorded is None:
                served.unrecorded = time.monotonic()
                logger.warning("the end of episode {} is not recorded yet: {}", served.made.uuid, error)
            raise Refused(
                f"The episode's end could not be recorded: {_describe_error(error)} Send the same request again.",
                status=503,
                code="not_recorded",
                retry_after=1,
            ) from error


def _describe_error(error: Exception) -> str:
    """Without the paths of this machine."""
    if isinstance(error, UserError):
        return error.what
    number = error.errno if isinstance(error, OSError) else None
    return f"{os.strerror(number) if number else type(error).__name__}."
