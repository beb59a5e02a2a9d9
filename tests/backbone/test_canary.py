"""The canary: what it compares, that it leaves no trace, and that two mismatches in a row end a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ajet.backbone.local import LocalBackbone
from ajet.backbone.local import backbone as backbone_module
from ajet.config import Experiment
from ajet.schema.batch import TrainingBatch
from ajet.schema.errors import UserError
from ajet.train.sources.store import extend_probe, start_probe
from ajet_ray.store_tickets import FolderProbe
from ajet_verl.trainer.hooks import measure_canary_gap
from tests.support.local_fixtures import sample_of

pytestmark = pytest.mark.slow

BATCH = TrainingBatch(1, [sample_of(list(range(3, 40)), [(8, 37)])])


def experiment_in(tmp_path: Path, **common: Any) -> Experiment:
    trainer = {"device": "cpu", "threads": 1, "use_kl_loss": False, **common}
    model = {"path": "embedded:tiny-tools", "dtype": "float32"}
    return Experiment.from_dict(
        {"ajet": {"backbone": "local", "model": model, "trainer_common": trainer}}, base=tmp_path
    )


@contextmanager
def opened(tmp_path: Path, **common: Any) -> Iterator[LocalBackbone]:
    backbone = LocalBackbone(experiment_in(tmp_path, **common))
    try:
        yield backbone
    finally:
        backbone.close()


def shift(engine: Any) -> None:
    """Have the engine sample from other weights than the trainer's, as one that was not handed them does."""
    norm = engine._model.model.norm
    norm.weight = torch.nn.Parameter(norm.weight.detach() * 1.5, requires_grad=False)


def test_it_agrees_after_every_hand_over(tmp_path):
    with opened(tmp_path) as backbone:
        for version in (1, 2):
            assert backbone.update(BATCH).metrics["canary_gap"] < 1e-4
            engine: Any = backbone.engine
            assert engine.version == backbone.version == version, "tokens are stamped with the weights they are of"


def test_it_leaves_no_trace(tmp_path):
    with opened(tmp_path) as backbone:
        engine: Any = backbone.engine
        random, counts, weights = torch.get_rng_state(), dict(engine.counts), backbone.trainer.policy.weights
        values, own = weights.values.clone(), np.random.get_state()[1].tolist()
        assert backbone.compute_canary()["canary_gap"] < 1e-4
        assert torch.equal(torch.get_rng_state(), random) and np.random.get_state()[1].tolist() == own
        assert engine.counts == counts and not engine._rows.pools
        assert torch.equal(weights.values, values) and weights.gradients is None


def test_two_mismatches_in_a_row_end_the_run(tmp_path):
    with opened(tmp_path) as backbone:
        shift(backbone.engine)
        assert backbone.update(BATCH).metrics["canary_gap"] > 0.01
        with pytest.raises(UserError, match="compute different models") as said:
            backbone.update(BATCH)
    assert "policy version 2" in str(said.value) and "docs/models.md" in str(said.value)


def test_switched_off_it_says_nothing_and_no_verdict_of_before_is_believed(monkeypatch, tmp_path):
    monkeypatch.setattr(backbone_module, "VerdictCache", None)  # nobody makes one
    with opened(tmp_path, canary=None) as backbone:
        shift(backbone.engine)
        for _ in range(3):
            assert "canary_gap" not in backbone.update(BATCH).metrics


def test_on_verl_only_tokens_of_the_newest_weights_count():
    samples = [sample_of([1, 2, 3, 4], [(2, 4)], logprobs=[0, 0, -1.0, -2.0]) for _ in range(2)]
    trainer = [np.array([0, 0, -1.5, -2.5], np.float32), np.array([0, 0, -9, -9], np.float32)]
    rows = [{"min_global_steps": 3, "max_global_steps": 3}, {"min_global_steps": 2, "max_global_steps": 3}]
    assert measure_canary_gap(samples, trainer, rows, at_least=0) == pytest.approx(0.5)
    assert measure_canary_gap(samples, trainer, rows, at_least=3) == pytest.approx(0.5)
    assert measure_canary_gap(samples, trainer, rows, at_least=4) is None, "the trainer has other weights by now"
    assert measure_canary_gap([], [], [], at_least=0) is None


def test_what_a_folder_says_of_the_probe_is_what_its_trainer_says(tmp_path):
    """Of weights that train in other processes, by a model that is loaded for it."""
    with opened(tmp_path) as backbone:
        experiment = experiment_in(tmp_path)
        folders = FolderProbe(experiment, backbone.tokenizer)
        known = start_probe(backbone, experiment.ajet.trainer_common, None, rounded=False)
        assert folders.continue_probe(None, 0) == known
        backbone.update(BATCH)
        (saved := tmp_path / "saved").mkdir()
        backbone.save(saved)
        there = extend_probe(known, backbone, keep=1).logprobs[1]
        first, later = folders.score_text(None), folders.score_text(saved)
        assert np.abs(np.array(later) - there).max() < 1e-4 < np.abs(np.array(first) - there).mean()
        earlier = known.add_version(0, first, keep=1).add_version(1, later, keep=1)
        assert set(folders.continue_probe(earlier, 1).logprobs) == {0}, (
            "what a trainer before said of the version to come is void"
        )
