"""verl trains on what a sampler elsewhere put into MongoDB, with AgentRL's settings for minirl, is killed with -9
between two steps, and goes on.

(From SQLite: Trinity, in `test_trinity_from_store.py`.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ajet.config.schema.trainer_common import CANARY_ROUNDED
from tests.mongod import Mongod
from tests.trained_apart import Apart, trained_apart
from tests.verl_runs import skip_without_verl

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, mongod: Mongod) -> Iterator[Apart]:
    skip_without_verl()
    preset = "trainer_common.algorithm.preset=minirl"
    with trained_apart(tmp_path_factory.mktemp("project"), mongod.empty(), preset) as made:
        yield made


def test_what_the_sampler_played_is_trained_once_or_counted(apart: Apart) -> None:
    apart.require_each_once()


def test_it_sampled_with_what_the_trainer_saved(apart: Apart) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    seen = set()
    for episode in apart.recorded():
        for line in episode.timelines:
            for version in set(line.versions[line.mask].tolist()) - {0}:
                folder = apart.life.run / "checkpoints" / f"step-{version}"
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                ids = torch.from_numpy(line.ids.astype(np.int64))
                with torch.no_grad():
                    said = model(ids[None]).logits[0, :-1].log_softmax(-1)
                own = said[torch.arange(len(ids) - 1), ids[1:]].numpy()
                at = np.flatnonzero(line.mask & (line.versions == version))
                assert np.abs(line.logprobs_unit[at] - own[at - 1]).mean() < CANARY_ROUNDED
                seen.add(version)
    assert seen, "the last step is trained on nothing older than the first step's weights"
