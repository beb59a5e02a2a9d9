"""The backbone of a sampler: an engine that samples with the weights of a remote trainer.

Invariant: the backbone never trains. Its samples are trained on elsewhere, so each sampled token carries the policy
version that sampled it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.backbone.debug import UntrainedBackbone
from ajet.engine.adapters import Adapters
from ajet.engine.drivers import open_follower

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.engine.probe import WeightsProbe


class FollowingBackbone(UntrainedBackbone):
    """Owns an engine whose weights are the last ones passed to `load_weights`."""

    def __init__(self, experiment: Experiment) -> None:
        self._follower = open_follower(experiment.ajet, base=experiment.base)
        self.engine = self._follower.engine
        self.tokenizer = self._follower.tokenizer
        self.adapters = Adapters([])

    @property
    def version(self) -> int:
        """Policy version of the weights in the engine."""
        return self._follower.version

    def load_weights(
        self,
        folder: Path | None,
        version: int,
        probe: WeightsProbe | None,
        on_wait: Callable[[], None],
        *,
        is_leader: bool = True,
    ) -> bool:
        """Load the weights of a policy version into the engine, as `ajet.engine.drivers` describes.

        Args:
            folder: Folder of the weights. None for the weights of model.path.
            version: Policy version of the weights.
            probe: The trainer's log-probabilities of a fixed text, to check the weights of a server.
            on_wait: Called while the loading waits.
            is_leader: True if this process sends the weights to a remote server.
        """
        return self._follower.load_weights(folder, version, probe, on_wait, is_leader=is_leader)
