"""A server elsewhere (vLLM, SGLang) as an engine whose weights are a trainer's: given to it where that can be done, and
known by what it says of the announced probe.

Invariant: a token bears a version only while the server is known to have its weights. They are known by the name that
the server has for them and by its log-probabilities of the probe, both; a server without a name for them, which cannot
be given others, is taken for the oldest announced version that fits. What another process changes there under way is
noticed by the name before and after each reply (`RemoteEngine.confirm_weights`): that reply fails. Of several processes
that sample from one server one `is_leader` and gives it weights; the others wait until it has them, and look for
themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.engine.remote_server import ServerAwayError
from ajet.engine.server_detection import open_remote
from ajet.engine.server_weights import ConcurrentLoadError
from ajet.record.checkpoint import Checkpoint, inspect_checkpoint
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.engine.probe import WeightsProbe

AWAY = 600.0
"""Seconds for which a server may be away before who samples from it ends."""
UNKNOWN = -1
"""Version of a server whose weights nobody has looked at yet, or that were changed by somebody else."""


class ServerFollower:
    """See `ajet.engine.follower.EngineFollower`."""

    def __init__(self, config: AjetConfig, tokenizer: Any, first: Path) -> None:
        """`first`: the folder of model.path, for a server that was given other weights before."""
        self.tokenizer, self._first = tokenizer, first
        self.engine = open_remote(config, vocabulary=len(tokenizer))
        self._weights = self.engine.weights()
        self._known = False
        self._looked = UNKNOWN
        """The newest version at which a server that cannot be given weights was looked at."""
        self._away = 0.0
        """Since when it does not answer; 0: it does."""

    @property
    def version(self) -> int:
        """The version of the server's weights; UNKNOWN before the first look, and after somebody else changed them."""
        return self.engine.version if self._known and not self.engine.has_unknown_weights else UNKNOWN

    def load_weights(
        self,
        folder: Path | None,
        version: int,
        probe: WeightsProbe | None,
        on_wait: Callable[[], None],
        *,
        is_leader: bool = True,
    ) -> bool:
        """See `EngineFollower`. False: it cannot be given these; `version` says what it has. Raises UserError, also for
        a server that has none of the announced weights, and for one that is away for long: for a while it is one whose
        weights are not there, since it may be being started again."""
        try:
            taken = self._load_version(folder, version, probe, on_wait, is_leader=is_leader)
        except ServerAwayError as away:
            now = time.monotonic()
            self._away = self._away or now
            if now - self._away > AWAY:
                raise
            raise FileNotFoundError(away.what) from away
        except UserError as problem:
            if folder is None or folder.exists():
                raise
            raise FileNotFoundError(f"{folder} went while it was loaded: {problem.what}") from problem
        self._away = 0.0
        return taken

    def _load_version(
        self,
        folder: Path | None,
        version: int,
        probe: WeightsProbe | None,
        on_wait: Callable[[], None],
        *,
        is_leader: bool,
    ) -> bool:
        assert probe is not None, "a sampler at a server waits until the trainer has announced one"
        name = self._weights.name()
        if name is None:
            return self._match_fixed_weights(version, probe)
        wanted = name_weights(folder, version)
        if name != wanted and not is_leader:
            raise FileNotFoundError(f"{self.engine.base_url} has {name}, and another sampler gives it {wanted}")
        if name != wanted or self.version != version:
            with self.engine.drain_calls(on_wait):
                if (now := self._weights.name()) not in (name, wanted):
                    raise FileNotFoundError(f"{name}: meanwhile the server has got {now}")  # ours may be old by now
                try:
                    self._send_weights(now, wanted, folder, version, probe)
                except ConcurrentLoadError as crossed:
                    raise FileNotFoundError(f"{crossed}: they are given again") from crossed
        return True

    def _send_weights(self, name: str, wanted: str, folder: Path | None, version: int, probe: WeightsProbe) -> None:
        if name != wanted:
            self._known = False
            if folder is not None:
                self._weights.give(folder, wanted)
            elif probe.matches(version, self.engine.score(probe.ids)):  # those it was started with; nobody named them
                self._weights.rename(wanted)
            else:  # it has those of an earlier run
                self._weights.give(self._first, wanted)
        found = self.engine.score(probe.ids)
        if not probe.matches(version, found):
            self._known = False
            if (now := self._weights.name()) != wanted:
                raise ConcurrentLoadError(f"the server has got {now} since it was given {wanted}")
            gap = probe.measure_gap(version, found)
            raise self._build_refusal(
                f"its log-probabilities are {gap:.3g} nats a token from those of policy {version}",
                f"at most {probe.tolerance:g} (ajet.trainer_common.canary). A server on a CPU packs its weights at the "
                "start and loads only a part of later ones: let ajet sample start vLLM itself there",
            )
        self.engine.confirm_weights(version, wanted)
        self._known = True

    def _match_fixed_weights(self, version: int, probe: WeightsProbe) -> bool:
        if self._looked == version:
            return self.version == version
        found = self.engine.score(probe.ids)
        has = probe.find_oldest(found)
        if has is None or (self._known and not probe.matches(self.engine.version, found)):
            raise self._build_refusal(
                "they are none of those that the trainer announced, by its log-probabilities of the probe",
                f"the weights of model.path. To be given others it must be started with {self._weights.cannot}",
            )
        if not self._known:
            self.engine.confirm_weights(has, None)
            self._known = True
        self._looked = version
        if self.version != version:
            logger.info(
                "the server keeps policy {} while {} is announced: it has no {}", has, version, self._weights.cannot
            )
        return self.version == version

    def _build_refusal(self, why: str, expected: str) -> UserError:
        return UserError(
            f"The weights of the {self.engine.kind} server are not the trainer's: {why}.",
            where=f"ajet.rollout.vllm.base_url: {self.engine.base_url}",
            expected=expected,
        )


def name_weights(folder: Path | None, version: int) -> str:
    """What a server calls the weights in `folder`: two checkpoints of one number have two names. Raises
    FileNotFoundError where it is not there, or not all of it."""
    if folder is None:
        return f"ajet-{version}"
    found = inspect_checkpoint(folder)
    if not isinstance(found, Checkpoint):
        raise FileNotFoundError(f"{folder}: {found}")
    return f"ajet-{version}-{found.digest[:16]}"
