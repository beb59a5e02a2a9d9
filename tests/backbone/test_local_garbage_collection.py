"""Garbage collections of a training run skip what was loaded before the first update."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from ajet.backbone.local import LocalBackbone
from ajet.config import Experiment
from ajet.schema.batch import TrainingBatch
from tests.support.local_fixtures import sample_of

pytestmark = pytest.mark.slow

BATCH = TrainingBatch(1, [sample_of(list(range(3, 40)), [(8, 37)])])


@pytest.mark.parametrize(("mode", "freezes"), [("sync", True), ("async", False)])
def test_first_update_excludes_rollout_modules(none_frozen: None, tmp_path: Path, mode: str, freezes: bool) -> None:
    trainer = {"device": "cpu", "threads": 1, "use_kl_loss": False, "mode": mode}
    settings = {"backbone": "local", "model": {"path": "embedded:tiny-tools"}, "trainer_common": trainer}
    backbone = LocalBackbone(Experiment.from_dict({"ajet": settings}, base=tmp_path))
    try:
        loaded: list[list[int]] = [[] for _ in range(5000)]  # as the modules of an SDK
        started = gc.get_freeze_count()
        backbone.update(BATCH)
        first = gc.get_freeze_count()
        assert (first > started + 4000) is freezes
        later: list[list[int]] = [[] for _ in range(5000)]
        backbone.update(BATCH)
        assert gc.get_freeze_count() < first + 4000, "only the first update excludes objects"
        assert len(loaded) == len(later)
    finally:
        backbone.close()
    assert not gc.get_freeze_count()
