"""Trinity's trainer without its explorer: it trains on what a sampler elsewhere played, is killed with -9 between two
steps, and goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from ajet.record import EpisodeFiles
from ajet.run.prove import prove_recorded
from ajet.run.summary import Tally
from ajet.store import Address, open_shared
from tests.ajet_command import start
from tests.sample_fixtures import project_in
from tests.trinity_here import skip_without_trinity
from tests.verl_runs import Life, accounted, all_gone

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]

STEPS, GROUPS, REPEATS = 3, 2, 2
SETTINGS = [
    f"trainer_common.total_training_steps={STEPS}", f"data.train_batch_size={GROUPS}", f"rollout.num_repeat={REPEATS}",
    "trainer_common.max_staleness=1", "trainer_common.max_checkpoints_to_keep=9", "trainer_common.device=cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Life, Address, str, int, set[str]]]:
    """The run, its store, what its one sampler said, how that ended, and the names of the trainer's processes."""
    skip_without_trinity()
    folder = tmp_path_factory.mktemp("project")
    (folder / "sums").mkdir()
    yaml, store, log = (
        project_in(folder / "sums") / "sums.yaml",
        Address.of("store.db", base=folder),
        folder / "sampler",
    )
    yaml.write_text(yaml.read_text() + "trinity: {mode: train}\n")
    sampler = start("sample", "--conf", str(yaml), "--store", store.shown, "--name", "one", *SETTINGS, cwd=folder,
                    log=log)  # fmt: skip
    trains = "--from-store", store.shown, *SETTINGS, "--backbone", "trinity"
    try:
        first = Life(yaml, "apart", *trains)
        try:
            first.wait_for_step(2)
            left, names = first.processes(), {entry["role"] for entry in first.status()["processes"]}
            first.process.kill()
            first.process.wait()
            assert not all_gone(left)
        finally:
            first.end()
        second = Life(yaml, "apart", *trains)
        try:
            assert second.process.wait(timeout=900) == 0, second.log.read_text()[-4000:]
        finally:
            second.end()
        yield second, store, log.read_text(), sampler.wait(timeout=120), names
    finally:
        sampler.kill()


def test_what_the_sampler_played_is_trained_once_or_counted(trained: Any) -> None:
    life, store, said, ended, names = trained
    assert "trainer" in names and not any("vLLM" in name or "xplorer" in name for name in names), names
    rows = life.rows()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert (Tally.of(rows).skipped, Tally.of(rows).doubled) == (0, 0)
    seen: Counter[str] = Counter()
    for row in rows:
        assert len(row["tasks"]) == GROUPS and row["train/staleness_max"] <= 1 and row["train/trained_tokens"] > 0
        whole = EpisodeFiles(life.run / "episodes").recorded(row["step"])
        assert accounted(whole) == sum(episode.sampled_tokens for episode, _ in whole)
        seen.update(episode.uuid for episode, _ in whole)
    assert max(seen.values()) == 1
    depths, over = open_shared(store).depths(), {order for row in rows for order in [*row["tasks"], *row["discarded"]]}
    assert depths.leased == depths.dead == 0 and depths.next == len(over) + depths.closed + depths.waiting
    assert ended == 0 and "one: " in said, "it ends with the training"
    report = prove_recorded(str(life.run), life.run.parent)
    assert report.ok, (report.wrong_steps, report.proof.wrong[:2])


def test_it_sampled_with_what_trinity_saved(trained: Any) -> None:
    life = trained[0]
    versions = {
        version
        for step in range(1, STEPS + 1)
        for episode, _ in EpisodeFiles(life.run / "episodes").recorded(step)
        for line in episode.timelines
        for version in line.versions[line.mask].tolist()
    }
    assert versions > {0}, "the last step is trained on nothing older than the first step's weights"
    assert all(list((life.run / "checkpoints" / f"step-{step}").glob("*.safetensors")) for step in versions - {0})
