"""verl trains on what a sampler elsewhere played, is killed with -9 between two steps, and goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ajet.config.schema.trainer_common import CANARY_ROUNDED
from ajet.record import EpisodeFiles
from ajet.run.prove import prove_recorded
from ajet.run.summary import Tally
from ajet.schema.episode import Episode
from ajet.store import Address, open_shared
from tests.ajet_command import start
from tests.sample_fixtures import project_in
from tests.verl_runs import Life, accounted, all_gone, skip_without_verl

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]

STEPS, GROUPS, REPEATS = 3, 2, 2
SETTINGS = [
    f"trainer_common.total_training_steps={STEPS}", f"data.train_batch_size={GROUPS}", f"rollout.num_repeat={REPEATS}",
    "trainer_common.max_staleness=1", "trainer_common.max_checkpoints_to_keep=9", "trainer_common.device=cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Life, Address, str, int]]:
    """The run, its store, what its one sampler said, and how that ended."""
    skip_without_verl()
    folder = tmp_path_factory.mktemp("project")
    (folder / "sums").mkdir()
    yaml, store, log = (
        project_in(folder / "sums") / "sums.yaml",
        Address.of("store.db", base=folder),
        folder / "sampler",
    )
    flags = ("--conf", str(yaml), "--store", store.shown, "--name", "one")
    sampler = start("sample", *flags, *SETTINGS, cwd=folder, log=log)
    try:
        first = Life(yaml, "apart", "--from-store", store.shown, *SETTINGS)
        try:
            first.wait_for_step(2)
            left = first.processes()
            first.process.kill()
            first.process.wait()
            assert not all_gone(left)
        finally:
            first.end()
        second = Life(yaml, "apart", "--from-store", store.shown, *SETTINGS)
        try:
            assert second.process.wait(timeout=900) == 0, second.log.read_text()[-4000:]
        finally:
            second.end()
        yield second, store, log.read_text(), sampler.wait(timeout=120)
    finally:
        sampler.kill()


def recorded(life: Life) -> Iterator[Episode]:
    for step in range(1, STEPS + 1):
        yield from EpisodeFiles(life.run / "episodes").read(step)


def test_what_the_sampler_played_is_trained_once_or_counted(trained: Any) -> None:
    life, store, said, ended = trained
    rows = life.rows()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert (Tally.of(rows).skipped, Tally.of(rows).doubled) == (0, 0)
    for row in rows:
        assert len(row["tasks"]) == GROUPS and row["train/staleness_max"] <= 1 and row["train/trained_tokens"] > 0
        whole = EpisodeFiles(life.run / "episodes").recorded(row["step"])
        assert accounted(whole) == sum(episode.sampled_tokens for episode, _ in whole)
    assert max(Counter(episode.uuid for episode in recorded(life)).values()) == 1
    depths, over = open_shared(store).depths(), {order for row in rows for order in [*row["tasks"], *row["discarded"]]}
    assert depths.leased == depths.dead == 0 and depths.next == len(over) + depths.closed + depths.waiting
    assert ended == 0 and "one: " in said, "it ends with the training"
    report = prove_recorded(str(life.run), life.run.parent)
    assert report.ok, (report.wrong_steps, report.proof.wrong[:2])


def test_it_sampled_with_what_the_trainer_saved(trained: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    life, _, _, _ = trained
    seen = set()
    for episode in recorded(life):
        for line in episode.timelines:
            for version in set(line.versions[line.mask].tolist()) - {0}:
                folder = life.run / "checkpoints" / f"step-{version}"
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                ids = torch.from_numpy(line.ids.astype(np.int64))
                with torch.no_grad():
                    said = model(ids[None]).logits[0, :-1].log_softmax(-1)
                own = said[torch.arange(len(ids) - 1), ids[1:]].numpy()
                at = np.flatnonzero(line.mask & (line.versions == version))
                assert np.abs(line.logprobs_unit[at] - own[at - 1]).mean() < CANARY_ROUNDED
                seen.add(version)
    assert seen, "the last step is trained on nothing older than the first step's weights"
