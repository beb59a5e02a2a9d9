"""What a sampler has for a backbone: an engine that samples with the weights of a trainer elsewhere.

Invariant: like the debug backbone it never changes a weight by itself; what it samples is trained on, so each of its
tokens says which version sampled it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.backbone.debug import DebugBackbone
from ajet.engine.adapters import Adapters
from ajet.engine.follower import open_follower

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.engine.probe import WeightsProbe


class FollowingBackbone(DebugBackbone):
    """Owns an engine; its weights are those that it was last told to `load_weights`."""

    def __init__(self, experiment: Experiment) -> None:
        self._follower = open_follower(experiment.ajet, base=experiment.base)
        self.engine = self._follower.engine
        self.tokenizer: Any = self._follower.tokenizer
        self.adapters = Adapters([])

    @property
    def version(self) -> int:
        """The version of the weights that it samples with."""
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
        """See `ajet.engine.follower`."""
        return self._follower.load_weights(folder, version, probe, on_wait, is_leader=is_leader)
