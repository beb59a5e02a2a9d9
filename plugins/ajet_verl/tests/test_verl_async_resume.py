"""An asynchronous run on verl ends and goes on: what was played ahead is neither lost nor out of the record."""

from pathlib import Path

import pytest

from ajet.record import EpisodeFiles
from ajet.record.checkpoints import Checkpoints
from tests.support.verl_runs import Life, skip_without_verl, tool_project

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]

FIRST, LAST = 3, 7
SETTINGS = [
    "trainer_common.mode=colocate_async", "trainer_common.device=cpu", "trainer_common.max_staleness=3",
    "verl.trainer.v1.colocate_async.num_warmup_batches=3", "data.train_batch_size=4",
    "trainer_common.val_before_train=false", "trainer_common.algorithm.is_cap=2.0",
]  # fmt: skip


def ended(yaml: Path, steps: int) -> Life:
    """A launch that trains until that step."""
    life = Life(yaml, "ahead", *SETTINGS, f"trainer_common.total_training_steps={steps}")
    try:
        assert life.process.wait(timeout=900) == 0, life.log.read_text()[-4000:]
    finally:
        life.end()
    return life


def waiting(life: Life, step: int) -> set[int]:
    """Positions of the groups that had closed when the checkpoint of a step was written, and that no step had used."""
    checkpoint = Checkpoints(life.run / "checkpoints").latest()
    assert checkpoint is not None and checkpoint.step == step
    (row,) = (row for row in life.rows() if row["step"] == step)
    waits = set(row.get("waiting", ()))
    assert waits <= set(checkpoint.state["frontier"]["unfinished"])
    return waits


def pending(life: Life) -> EpisodeFiles:
    return EpisodeFiles(life.run / "pending")


def test_groups_that_were_played_ahead_are_trained_by_the_next_launch(tmp_path):
    skip_without_verl()
    yaml = tool_project(tmp_path)
    first = ended(yaml, FIRST)
    ahead = waiting(first, FIRST)
    assert ahead, "verl plays batches ahead"
    episodes = [episode for number in pending(first).steps() for episode in pending(first).read(number)]
    kept = {(episode.uuid, episode.started) for episode in episodes}
    second = ended(yaml, LAST)
    rows = second.rows()
    assert [row["step"] for row in rows] == list(range(1, LAST + 1))
    later = [order for row in rows[FIRST:] for order in [*row["tasks"], *row["discarded"]]]
    assert ahead <= set(later)
    recorded = [EpisodeFiles(second.run / "episodes").read(row["step"]) for row in rows[FIRST:]]
    handed_over = {episode.order for step in recorded for episode in step if (episode.uuid, episode.started) in kept}
    assert ahead <= handed_over, "they are not played again"
    for row in rows:
        assert len(row["tasks"]) == 4
        recorded = EpisodeFiles(second.run / "episodes").recorded(row["step"])
        episodes = [episode for episode, _ in recorded]
        assert len({episode.uuid for episode in episodes}) == len(episodes) == row["train/episodes"]
        assert sum(row.get(name, 0) for name in row if name.startswith("train/untrained/")) == sum(
            episode.untrained_with(outcome).total() for episode, outcome in recorded
        )
    seen = [order for row in rows for order in [*row["tasks"], *row["discarded"]]]
    assert len(seen) == len(set(seen)) and not set(seen) & waiting(second, LAST), "nothing is trained twice"
