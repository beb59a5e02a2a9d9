"""verl trains on what a sampler elsewhere put into MongoDB, with AgentRL's settings for minirl, is killed with -9
between two steps, and goes on.

(From SQLite: Trinity, in `test_trinity_from_store.py`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ajet.config.schema.trainer_common import CANARY_ROUNDED
from ajet.record import EpisodeFiles
from ajet.schema.episode import Episode
from ajet.store import Address, open_shared
from tests.support.ajet_process import start
from tests.support.mongod import Mongod
from tests.support.sample_fixtures import HELD_FROM, kept_of, project_in
from tests.support.sglang_server import SglangProcess
from tests.support.trained_apart import GROUPS, SETTINGS, Apart, trained_apart
from tests.support.verl_runs import Life, skip_without_verl

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, mongod: Mongod) -> Iterator[Apart]:
    skip_without_verl()
    preset = "trainer_common.algorithm.preset=minirl"
    with trained_apart(tmp_path_factory.mktemp("project"), mongod.empty(), preset) as made:
        yield made


def test_what_the_sampler_played_is_trained_once_or_counted(apart: Apart) -> None:
    apart.require_each_once()


def sampled_with(run: Path, episodes: Iterable[Episode]) -> set[int]:
    """Versions whose checkpoints' weights said what the episodes say that they did."""
    import torch
    from transformers import AutoModelForCausalLM

    seen = set()
    for episode in episodes:
        for line in episode.timelines:
            for version in set(line.versions[line.mask].tolist()) - {0}:
                folder = run / "checkpoints" / f"step-{version}"
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                ids = torch.from_numpy(line.ids.astype(np.int64))
                with torch.no_grad():
                    said = model(ids[None]).logits[0, :-1].log_softmax(-1)
                own = said[torch.arange(len(ids) - 1), ids[1:]].numpy()
                at = np.flatnonzero(line.mask & (line.versions == version))
                assert np.abs(line.logprobs_unit[at] - own[at - 1]).mean() < CANARY_ROUNDED
                seen.add(version)
    return seen


def test_it_sampled_with_what_the_trainer_saved(apart: Apart) -> None:
    assert sampled_with(apart.life.run, apart.recorded()), "the last step is trained on nothing older than step 1's"


def test_beside_a_server_elsewhere_it_is_asked_to_end_while_groups_are_being_played(tmp_path: Path) -> None:
    """A sampler follows it at a server that is known by what the run says of the probe. SIGTERM while the third step
    waits for two groups that are held up: they close within the grace, the step is trained and saved, and the run ends
    as to be started again."""
    skip_without_verl()
    server = SglangProcess()
    (tmp_path / "sums").mkdir()
    yaml, log = project_in(tmp_path / "sums") / "sums.yaml", tmp_path / "sampler"
    (hold := yaml.parent / "hold").touch()
    settings = [*SETTINGS, "trainer_common.total_training_steps=5", "model.dtype=float32"]
    store = Address.of("store.db", base=tmp_path)
    plays = ("sample", "--conf", str(yaml), "--store", store.shown, "--name", "one", "--engine", server.url, *settings)
    sampler = start(*plays, cwd=tmp_path, log=log)
    trainer = Life(yaml, "asked", "--from-store", store.shown, *settings)
    try:
        trainer.wait_for_step(HELD_FROM // GROUPS)
        ledger = open_shared(store)

        def holds() -> bool:
            """Of each group that is being played the first attempt has ended, and the trainer waits for the step."""
            played = kept_of(store, HELD_FROM) and kept_of(store, HELD_FROM + 1)
            return bool(played) and ledger.depths().leased >= GROUPS and ledger.depths().closed == 0

        trainer.wait(holds, "groups that are held")
        trainer.process.terminate()
        trainer.wait(lambda: "waits up to" in trainer.log.read_text(), "its word that it waits")
        hold.unlink()
        assert trainer.process.wait(timeout=300) == 75, trainer.log.read_text()[-4000:]
        assert [row["step"] for row in trainer.rows()] == [1, 2, 3] and len(trainer.rows()[-1]["tasks"]) == GROUPS
        assert (trainer.run / "checkpoints" / "step-3").is_dir()
        ledger.disconnect()
        recorded = [each for step in (1, 2, 3) for each in EpisodeFiles(trainer.run / "episodes").read(step)]
        assert sampled_with(trainer.run, recorded), log.read_text()
        sampler.terminate()
        assert sampler.wait(timeout=120) in (75, 130) and "uses policy version 2" in log.read_text(), log.read_text()
    finally:
        trainer.end()
        sampler.kill()
        sampler.wait()
        server.kill()
