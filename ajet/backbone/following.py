"""The backbone of a sampler: an engine that samples with the weights of a remote trainer.

Invariant: the backbone never trains. Its samples are trained on elsewhere, so each sampled token carries the policy
version that sampled it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.backbone.debug import UntrainedBackbone
from ajet.engine.drivers import open_follower

if TYPE_CHECKING:
    from ajet.config import Experiment


class FollowingBackbone(UntrainedBackbone):
    """Owns an engine whose weights are the last ones passed to `load_weights`."""

    def __init__(self, experiment: Experiment) -> None:
        self._follower = open_follower(experiment.ajet, base=experiment.base)
        self.engine = self._follower.engine
        self.tokenizer = self._follower.tokenizer
        self.load_weights = self._follower.load_weights

    @property
    def version(self) -> int:
        """Policy version of the weights in the engine."""
        return self._follower.version
