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
    """An engine on a remote server whose weights follow a trainer's."""

    engine: RemoteEngine

    def __init__(self, config: AjetConfig, tokenizer: Any, first: Path) -> None:
        """Connect to the server, without changing its weights.

        Args:
            first: folder of model.path, to restore the initial weights.

        Raises:
            UserError: the server cannot be used.
        """
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
        """Load a policy version into the server, and verify it by the log-probabilities of the probe.

        Args:
            folder: folder of the weights, which must also exist on the server's machine; None for those of model.path.
            version: policy version of the weights.
            probe: log-probabilities of a fixed text under each announced version.
            on_wait: called about once per second while running replies finish.
            is_leader: True if this process sends weights to the server; the others wait for it.

        Returns:
            False if the server cannot load weights and has another version.

        Raises:
            FileNotFoundError: the weights are not available now, so the caller tries again later: they are gone, other
                processes are changing them, or the server is away and may be restarting.
            UserError: the server has no announced weights, or was away for longer than AWAY.
        """
        try:
            has_version = self._load_version(folder, version, probe, on_wait, is_leader=is_leader)
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
            # The trainer deletes old checkpoints, so this is no error of the user: later weights can be loaded.
            raise FileNotFoundError(
                f"the weights in {folder} were deleted while they were loaded: {problem.what}"
            ) from problem
        self._away_since = 0.0
        return has_version

    def _load_version(
        self,
        folder: Path | None,
        version: int,
        probe: WeightsProbe | None,
        on_wait: Callable[[], None],
        *,
        is_leader: bool,
    ) -> bool:
        """Load a policy version into the server, in one attempt. The arguments are those of `load_weights`.

        Returns:
            False if the server cannot load weights and has another version.

        Raises:
            ServerAwayError: the server does not answer.
            FileNotFoundError: the weights are not available now.
            UserError: the server refuses, or has weights that the trainer did not announce.
        """
        assert probe is not None, (
            "a sampler that uses an inference server waits until the trainer has announced weights"
        )
        server_name = self._weights.name()
        if server_name is None:  # the server cannot load weights
            return self._match_fixed_weights(version, probe)
        wanted_name = name_weights(folder, version)
        if server_name != wanted_name and not is_leader:
            raise FileNotFoundError(
                f"{self.engine.base_url} has the weights {server_name}, and another sampler will load {wanted_name}"
            )
        if server_name != wanted_name or self.version != version:
            with self.engine.drain_calls(on_wait):
                if (current_name := self._weights.name()) not in (server_name, wanted_name):
                    # Another process has loaded weights, perhaps later ones than this process knows of.
                    raise FileNotFoundError(
                        f"the server's weights changed during the check, from {server_name} to {current_name}"
                    )
                try:
                    self._send_weights(current_name, wanted_name, folder, version, probe)
                except ConcurrentLoadError as concurrent:
                    raise FileNotFoundError(f"{concurrent}: ajet loads them again") from concurrent
        return True

    def _send_weights(
        self, server_name: str, wanted_name: str, folder: Path | None, version: int, probe: WeightsProbe
    ) -> None:
        """Load weights into the server unless their names show that it has them, and verify them by the probe.

        The caller has let running calls end.

        Args:
            server_name: the server's name for its present weights.
            wanted_name: name of the weights to load.
            folder: folder of the weights, or None for those of model.path.
            version: their policy version.

        Raises:
            ConcurrentLoadError: another process loaded weights at the same time.
            UserError: the log-probabilities of the server's weights are not those of this version.
        """
        if server_name != wanted_name:
            self._has_known_version = False
            if folder is not None:
                self._weights.give(folder, wanted_name)
            elif probe.matches(version, self.engine.score(probe.ids)):  # the initial weights, still without a name
                self._weights.rename(wanted_name)
            else:  # the server has weights of an earlier run
                self._weights.give(self._first, wanted_name)
        scores = self.engine.score(probe.ids)
        if not probe.matches(version, scores):
            self._has_known_version = False
            if (current_name := self._weights.name()) != wanted_name:
                raise ConcurrentLoadError(
                    f"the server has the weights {current_name}, although this process loaded {wanted_name}"
                )
            gap = probe.measure_gap(version, scores)
            raise self._build_refusal(
                f"the log-probabilities of its weights differ from those of policy version {version} by "
                f"{gap:.3g} nats per token",
                f"a difference of at most {probe.tolerance:g} (ajet.trainer_common.canary). A vLLM server on a "
                "CPU loads later weights only in part: let ajet sample start vLLM itself there",
            )
        self.engine.confirm_weights(version, wanted_name)
        self._has_known_version = True

    def _match_fixed_weights(self, version: int, probe: WeightsProbe) -> bool:
        """Find the policy version of a server that cannot load weights, by its log-probabilities of the probe.

        Returns:
            True if the server's version is `version`.

        Raises:
            UserError: the server has no announced weights, or its weights changed since an earlier call.
        """
        if self._last_compared == version:
            return self.version == version
        scores = self.engine.score(probe.ids)
        server_version = probe.find_oldest(scores)
        if server_version is None or (self._has_known_version and not probe.matches(self.engine.version, scores)):
            raise self._build_refusal(
                "by its log-probabilities of a test text, it has none of the weights that the trainer announced",
                "the weights of model.path; a server that can load later weights must be started with "
                f"{self._weights.cannot}",
            )
        if not self._has_known_version:
            self.engine.confirm_weights(server_version, None)
            self._has_known_version = True
        self._last_compared = version
        if self.version != version:
            logger.info(
                "the inference server stays at policy version {} although the trainer announced version {}: the "
                "server has no {}, which loading weights needs",
                server_version,
                version,
                self._weights.cannot,
            )
        return self.version == version

    def _build_refusal(self, why: str, expected: str) -> UserError:
        """Return the error for a server with other weights than announced. `why` is the end of its first sentence."""
        return UserError(
            f"The {self.engine.kind} server does not have the trainer's weights: {why}.",
            where=f"ajet.rollout.vllm.base_url: {self.engine.base_url}",
            expected=expected,
        )


def name_weights(folder: Path | None, version: int) -> str:
    """Return the name that a server shall have for the weights in `folder`, or for those of model.path for None.

    The name has a digest of the checkpoint, so two checkpoints of one version have different names.

    Raises:
        FileNotFoundError: the checkpoint is missing or incomplete.
    """
    if folder is None:
        return f"ajet-{version}"
    checkpoint = inspect_checkpoint(folder)  # or the reason why the folder is no complete checkpoint
    if not isinstance(checkpoint, Checkpoint):
        raise FileNotFoundError(f"{folder}: {checkpoint}")
    return f"ajet-{version}-{checkpoint.digest[:16]}"
