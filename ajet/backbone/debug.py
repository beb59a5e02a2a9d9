"""The debug backbone: engine and rollout path of training, without an optimizer.

Invariant: the weights never change, and the version stays 0. `rollout.engine: endpoint` is allowed too, because no
sampled token is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.backbone.contract import Backbone, Rehearsal, Update
from ajet.engine.adapters import Adapters
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.backbone.contract import Scorer
    from ajet.config import Experiment
    from ajet.engine.contract import ChatEngine, TokenEngine
    from ajet.engine.watched import Watch


class UntrainedBackbone(Backbone):
    """Owns an engine and never trains. A subclass opens the engine."""

    trains = False
    engine: TokenEngine | ChatEngine
    adapters = Adapters([])

    @property
    def version(self) -> int:
        """Policy version of the weights in the engine."""
        raise NotImplementedError

    @property
    def whole_version(self) -> int | None:
        """The version of the engine's weights, always complete, because no update is ever interrupted."""
        return self.version

    def scorer(self, *, reference: bool = False) -> AbstractContextManager[Scorer]:
        """Raises ConfigError: a backbone without training has no scorer."""
        raise self._build_refusal()

    def values(self, samples: Sequence[Sample]) -> list[Floats]:
        """Raises ConfigError: a backbone without training has no critic."""
        raise self._build_refusal()

    def update(self, batch: TrainingBatch) -> Update:
        """Raises ConfigError: the debug backbone does not train."""
        raise self._build_refusal()

    def rehearse(self, lengths: Sequence[int]) -> Rehearsal:
        """Raises ConfigError: the debug backbone does not train."""
        raise self._build_refusal()

    def save(self, folder: Path) -> None:
        """Raises ConfigError: the debug backbone has no state to save."""
        raise self._build_refusal()

    def load(self, folder: Path) -> None:
        """Raises ConfigError: debug runs are never resumed."""
        raise self._build_refusal()

    def close(self) -> None:
        """Close the engine and release its resources."""
        self.engine.close()

    @staticmethod
    def _build_refusal() -> ConfigError:
        """Return the error for every training method, which this backbone does not support."""
        return ConfigError(
            "The debug backbone runs the agent without training.",
            where="ajet.backbone",
            do="to train, use --backbone local",
        )


class DebugBackbone(UntrainedBackbone):
    """Samples with the weights of `model.path`, and watches the calls."""

    watch: Watch
    """State of the engine's current calls."""

    def __init__(self, experiment: Experiment) -> None:
        """Open the configured engine: an endpoint, which has no tokenizer or adapters here, or a model
        in this process.
        """
        from ajet.engine.watched import WatchedChat, WatchedEngine

        self.tokenizer = None
        rollout = experiment.ajet.rollout
        if rollout.engine == "endpoint":
            from ajet.engine.endpoint import EndpointEngine

            chat = WatchedChat(EndpointEngine.from_config(experiment.ajet))
            self.engine, self.watch = chat, chat.watch
            return
        from ajet.engine.adapters import load_adapters
        from ajet.engine.drivers import open_sampler

        self.adapters = load_adapters(experiment.ajet, experiment.base)
        engine, self.tokenizer = open_sampler(experiment.ajet, base=experiment.base)
        watched = WatchedEngine(engine, self.tokenizer)
        self.engine, self.watch = watched, watched.watch

    @property
    def version(self) -> int:
        """Always 0: the weights never change."""
        return 0
