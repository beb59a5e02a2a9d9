"""SamplerPool and trainers of one store in this process, and what they refuse.

Gates pass `Experiment` and `Terms` on unchanged and use nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ajet.backbone.decoupled.terms import _NAMES, OVER, SamplingTerms
from ajet.commands.launch import launch
from ajet.commands.sampling.sample import SampleOptions, sample
from ajet.commands.sampling.sampler import GroupSampler
from ajet.config import Experiment, load_experiment
from ajet.engine import drivers
from ajet.engine.model_source import locate_model
from ajet.engine.models import load_tokenizer
from ajet.store import Address, SharedStore, open_shared
from ajet.task_reader import TaskOrder, open_reader
from ajet.train.runner import LaunchOptions
from tests.support.sample_fixtures import HELD_FROM, kept_of, project_in

__all__ = [
    "CHECKED",
    "HELD_FROM",
    "Experiment",
    "announce_training",
    "end_training",
    "kept_of",
    "load_experiment",
    "model_folder",
    "project_in",
    "require_same_terms",
    "sample_here",
    "samplers_keep_old_weights",
    "samplers_meet_bug",
    "terms_of",
    "train_here",
]

CHECKED = tuple(_NAMES.values())
"""Settings in which a trainer and a sampler must agree, as a refusal names them."""


def train_here(experiment: Experiment, store: Address | None = None) -> int:
    """Train in this process, from a store that others fill if one is named. Raises UserError."""
    more: dict[str, Any] = {} if store is None else {"from_store": store}
    return launch(experiment, LaunchOptions(rehearsal=False, **more))


def sample_here(experiment: Experiment, store: Address, *, name: str, **more: Any) -> None:
    """Play for a store in this process until its training is over. Raises UserError."""
    sample(experiment, SampleOptions(store, name=name, **more))


def terms_of(experiment: Experiment) -> SamplingTerms:
    """Return the terms of a sampler with this experiment."""
    tasks = TaskOrder(open_reader(experiment).tasks("train"), experiment.ajet.seed, experiment.ajet.data.shuffle)
    return SamplingTerms.of(experiment, load_tokenizer(locate_model(str(experiment.ajet.model.path))), tasks)


def announce_training(experiment: Experiment, ledger: SharedStore | None, *, below: int = 3) -> Any:
    """Return the first policy of a training with this experiment; announce it if a store is given."""
    policy = terms_of(experiment).policy("run", 0, 0, None, below, is_last=False)
    if ledger is not None:
        ledger.announce(policy)
    return policy


def require_same_terms(experiment: Experiment, policy: Any, store: str) -> None:
    """Raise UserError if the terms of a sampler with this experiment differ from those of the policy."""
    terms_of(experiment).require_same(policy, store)


def end_training(store: Address) -> None:
    """Announce in a store that its training is over."""
    if (announced := open_shared(store).announced()) is not None:
        ledger = open_shared(store, rolls=True, run=announced.policy.run)
        ledger.announce(replace(announced.policy, told={**announced.policy.told, OVER: True}))


def model_folder(model: str) -> Path:
    """Return the folder of a model that ajet ships."""
    folder = locate_model(model).folder
    assert folder is not None
    return folder


@contextmanager
def samplers_meet_bug(problem: Exception, seen: Callable[[], None]) -> Iterator[None]:
    """Within the block a sampler calls `seen` and raises this exception when it takes in an episode."""

    def breaks(self: GroupSampler, timeout: float) -> None:
        seen()
        raise problem

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupSampler, "take_in", breaks)
        yield


@contextmanager
def samplers_keep_old_weights() -> Iterator[None]:
    """Within the block samplers report newer weights without loading them."""

    def lies(self: Any, folder: Path, version: int, *about: object, is_leader: bool = True) -> bool:
        with self.engine.paused():
            self.engine.weights_changed(version)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drivers._TransformersFollower, "load_weights", lies)
        yield
