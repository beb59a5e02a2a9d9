"""verl's asynchronous modes, for real: episodes go on across updates, or are played by servers of their own."""

import pytest

from ajet.commands.summary import RunTally
from ajet.record import EpisodeFiles
from tests.support.ajet_process import ajet, metric_rows
from tests.support.verl_runs import skip_without_verl, tool_project

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]
STEPS = 4
SHORT = [
    f"trainer_common.total_training_steps={STEPS}", f"trainer_common.save_freq={STEPS}", "data.train_batch_size=4",
    "trainer_common.max_staleness=2",
]  # fmt: skip
SEVERAL = [
    "trainer_common.lora.rank=8", "trainer_common.use_kl_loss=true", "rollout.temperature=0.8",
    "rollout.val_kwargs.do_sample=true", "trainer_common.val_pass_n=2", "trainer_common.test_freq=2",
]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("colocate_async", SEVERAL),
        ("separate_async", ["trainer_common.test_freq=-1"]),
    ],
)
def test_it_trains(tmp_path, mode, settings):
    skip_without_verl()
    yaml = tool_project(tmp_path)
    chosen = [f"trainer_common.mode={mode}", "trainer_common.device=cpu", *SHORT, *settings]
    done = ajet("--conf", str(yaml), "--backbone", "verl", "--with-ray", *chosen, cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout
    run = tmp_path / "launcher_record" / "tool"
    rows = metric_rows(run)
    trained = [row for row in rows if "tasks" in row]
    assert [row["step"] for row in trained] == list(range(1, STEPS + 1))
    assert "importance weight min(trainer's probability / engine's, 2)" in " ".join(done.stdout.split())
    weights = [row["stale_is_weight_mean"] for row in trained if "stale_is_weight_mean" in row]
    assert all(0 < weight <= 2 for weight in weights), "stale tokens are weighed by default"
    assert weights or mode == "colocate_async", "servers of their own are ahead of the trainer"
    assert all(0 <= row["train/staleness_max"] <= 2 for row in trained)
    informative = [row for row in trained if row["credit/zero_variance_groups"] < row["credit/groups"]]
    assert informative and all(row["grad_norm"] > 0 for row in informative)
    assert RunTally.from_rows(rows).doubled == 0
    for row in trained:
        episodes = EpisodeFiles(run / "episodes").read(row["step"])
        assert len({episode.uuid for episode in episodes}) == len(episodes) == row["train/episodes"]
    if settings is SEVERAL:
        assert trained[-1]["kl"] > 0, "the policy has left its reference, the model without adapters"
        validated = [row for row in rows if "validation/tasks" in row]
        assert [row["step"] for row in validated] == [0, 2, 4] and all("validation/pass@2" in row for row in validated)
    exported = ajet("export", "tool", cwd=tmp_path)
    assert exported.returncode == 0 and (run / "exports" / f"step-{STEPS}" / "config.json").is_file(), exported.stdout
