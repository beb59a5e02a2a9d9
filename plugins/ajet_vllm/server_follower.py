"""A remote server (vLLM, SGLang) as an engine that follows a trainer's weights.

Weights are sent to the server if possible, and verified by its logprobs of the announced probe.

Invariant: a token gets a version only while the server's weights are verified, by their name on the server and by the
logprobs of the probe. A server that has no name for weights cannot load others, and is assumed to have the oldest
matching announced version. The name is read before and after each reply (`RemoteEngine.confirm_weights`), so the reply
fails if another process changed the weights. Of several processes on one server, only the one with `is_leader` sends
weights; the others wait and verify for themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.engine.drivers import EngineFollower
from ajet.engine.remote_server import AWAY, ServerAwayError
from ajet.record.checkpoint import Checkpoint, inspect_checkpoint
from ajet.schema.errors import UserError
from ajet_vllm.server_detection import open_remote
from ajet_vllm.server_weights import ConcurrentLoadError

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.engine.probe import WeightsProbe
    from ajet_vllm.remote import RemoteEngine

UNKNOWN = -1
"""Version of a server with weights not verified yet, or changed by another process."""


class ServerFollower(EngineFollower):
    """Follows with the weights of a remote server."""

    engine: RemoteEngine

    def __init__(self, config: AjetConfig, tokenizer: Any, first: Path) -> None:
        """Connect to the server. `first`: folder of model.path, to restore the initial weights."""
        self.tokenizer, self._first = tokenizer, first
        self.engine = open_remote(config, vocabulary=len(tokenizer))
        self._weights = self.engine.weights()
        self._has_known_version = False
        self._last_compared = UNKNOWN
        """Newest version compared with a server that cannot load weights."""
        self._away_since = 0.0
        """Time since the server has not answered; 0 if it answers."""

    @property
    def version(self) -> int:
        """Version of the server's weights; UNKNOWN before verification and after a change by another process."""
        return self.engine.version if self._has_known_version and not self.engine.has_unknown_weights else UNKNOWN

    def load_weights(
        self,
        folder: Path | None,
        version: int,
        probe: WeightsProbe | None,
        on_wait: Callable[[], None],
        *,
        is_leader: bool = True,
    ) -> bool:
        """Load a policy version into the server.

        Raises:
            FileNotFoundError: the weights are not available, or the server is away and may be restarting.
            UserError: the server has no announced weights, or was away for longer than AWAY.
        """
        try:
            taken = self._load_version(folder, version, probe, on_wait, is_leader=is_leader)
        except ServerAwayError as away:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since > AWAY:
                raise
            raise FileNotFoundError(
                away.what
            ) from away  # the sampler tries again, as for weights that do not exist yet
        except UserError as problem:
            if folder is None or folder.exists():
                raise
            raise FileNotFoundError(
                f"the weights in {folder} were deleted while they were loaded: {problem.what}"
            ) from problem
        self._away_since = 0.0
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
        assert probe is not None, (
            "a sampler that uses an inference server waits until the trainer has announced weights"
        )
        name = self._weights.name()
        if name is None:
            return self._match_fixed_weights(version, probe)
        wanted = name_weights(folder, version)
        if name != wanted and not is_leader:
            raise FileNotFoundError(
                f"{self.engine.base_url} has the weights {name}, and another sampler will load {wanted}"
            )
        if name != wanted or self.version != version:
            with self.engine.drain_calls(on_wait):
                if (now := self._weights.name()) not in (name, wanted):
                    # this process's version may be outdated by now
                    raise FileNotFoundError(f"the server's weights changed during the check, from {name} to {now}")
                try:
                    self._send_weights(now, wanted, folder, version, probe)
                except ConcurrentLoadError as crossed:
                    raise FileNotFoundError(f"{crossed}: ajet loads them again") from crossed
        return True

    def _send_weights(self, name: str, wanted: str, folder: Path | None, version: int, probe: WeightsProbe) -> None:
        if name != wanted:
            self._has_known_version = False
            if folder is not None:
                self._weights.give(folder, wanted)
            elif probe.matches(version, self.engine.score(probe.ids)):  # the initial weights, still without a name
                self._weights.rename(wanted)
            else:  # the server has weights of an earlier run
                self._weights.give(self._first, wanted)
        scores = self.engine.score(probe.ids)
        if not probe.matches(version, scores):
            self._has_known_version = False
            if (now := self._weights.name()) != wanted:
                raise ConcurrentLoadError(f"the server has the weights {now}, although this process loaded {wanted}")
            gap = probe.measure_gap(version, scores)
            raise self._build_refusal(
                f"the log-probabilities of its weights differ from those of policy version {version} by "
                f"{gap:.3g} nats per token",
                f"a difference of at most {probe.tolerance:g} (ajet.trainer_common.canary). A vLLM server on a "
                "CPU loads later weights only in part: let ajet sample start vLLM itself there",
            )
        self.engine.confirm_weights(version, wanted)
        self._has_known_version = True

    def _match_fixed_weights(self, version: int, probe: WeightsProbe) -> bool:
        if self._last_compared == version:
            return self.version == version
        scores = self.engine.score(probe.ids)
        has = probe.find_oldest(scores)
        if has is None or (self._has_known_version and not probe.matches(self.engine.version, scores)):
            raise self._build_refusal(
                "by its log-probabilities of a test text, it has none of the weights that the trainer announced",
                "the weights of model.path; a server that can load later weights must be started with "
                f"{self._weights.cannot}",
            )
        if not self._has_known_version:
            self.engine.confirm_weights(has, None)
            self._has_known_version = True
        self._last_compared = version
        if self.version != version:
            logger.info(
                "the inference server stays at policy version {} although the trainer announced version {}: the "
                "server has no {}, which loading weights needs",
                has,
                version,
                self._weights.cannot,
            )
        return self.version == version

    def _build_refusal(self, why: str, expected: str) -> UserError:
        return UserError(
            f"The {self.engine.kind} server does not have the trainer's weights: {why}.",
            where=f"ajet.rollout.vllm.base_url: {self.engine.base_url}",
            expected=expected,
        )


def name_weights(folder: Path | None, version: int) -> str:
    """Return the server's name for the weights in `folder`; two checkpoints of one version have different names.

    Raises:
        FileNotFoundError: the checkpoint is missing or incomplete.
    """
    if folder is None:
        return f"ajet-{version}"
    found = inspect_checkpoint(folder)
    if not isinstance(found, Checkpoint):
        raise FileNotFoundError(f"{folder}: {found}")
    return f"ajet-{version}-{found.digest[:16]}"
