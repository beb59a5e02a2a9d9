"""A trainer on Ray that learns from what one sampler elsewhere played, is killed with -9 between steps, and goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ajet.commands.summary import RunTally
from ajet.record import EpisodeFiles
from ajet.schema.episode import Episode
from ajet.store import Address, open_shared
from ajet_proof.recorded.prove import prove_record
from tests.support.ajet_process import start
from tests.support.sample_fixtures import project_in
from tests.support.verl_runs import Life, accounted, all_gone

STEPS, GROUPS, REPEATS = 3, 2, 2
SETTINGS = [
    f"trainer_common.total_training_steps={STEPS}", f"data.train_batch_size={GROUPS}", f"rollout.num_repeat={REPEATS}",
    "trainer_common.max_staleness=1", "trainer_common.max_checkpoints_to_keep=9", "trainer_common.device=cpu",
]  # fmt: skip


@dataclass(frozen=True)
class Apart:
    """What is left of it."""

    life: Life
    """The trainer's second."""
    names: set[str]
    """Of the processes of its first."""
    store: Address
    said: str
    """By the sampler."""
    ended: int
    """The sampler's exit code."""

    def recorded(self) -> Iterator[Episode]:
        for step in range(1, STEPS + 1):
            yield from EpisodeFiles(self.life.run / "episodes").read(step)

    def require_each_once(self) -> None:
        """Trained once, or counted; nothing left, nothing lost, and the sampler ended with the training."""
        rows = self.life.rows()
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
        assert (RunTally.from_rows(rows).skipped, RunTally.from_rows(rows).doubled) == (0, 0)
        for row in rows:
            assert len(row["tasks"]) == GROUPS and row["train/staleness_max"] <= 1 and row["train/trained_tokens"] > 0
            whole = EpisodeFiles(self.life.run / "episodes").recorded(row["step"])
            assert accounted(whole) == sum(episode.sampled_tokens for episode, _ in whole)
        assert max(Counter(episode.uuid for episode in self.recorded()).values()) == 1
        over = {order for row in rows for order in [*row["tasks"], *row["discarded"]]}
        depths = open_shared(self.store).depths()
        assert depths.leased == depths.dead == 0 and depths.next == len(over) + depths.closed + depths.waiting
        assert self.ended == 0 and "one: " in self.said, "it ends with the training"
        report = prove_record(str(self.life.run), self.life.run.parent)
        assert report.ok, (report.wrong_steps, report.proof.wrong[:2])


@contextmanager
def trained_apart(folder: Path, address: str, *flags: str, settings: str = "") -> Iterator[Apart]:
    """`address` of the store, as a person writes it; `flags` of the trainer; `settings` that the YAML ends with."""
    (folder / "sums").mkdir()
    yaml, log, store = project_in(folder / "sums") / "sums.yaml", folder / "sampler", Address.of(address, base=folder)
    yaml.write_text(yaml.read_text() + settings)
    plays = ("sample", "--conf", str(yaml), "--store", store.shown, "--name", "one", *SETTINGS)
    trains = ("--from-store", store.shown, *SETTINGS, *flags)
    sampler = start(*plays, cwd=folder, log=log)
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
        yield Apart(second, names, store, log.read_text(), sampler.wait(timeout=120))
    finally:
        sampler.kill()
