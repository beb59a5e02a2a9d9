"""`ajet sft`: the run that it leaves is a training's: recorded, resumed, proven, exported, tried and measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet.record import EpisodeFiles
from tests.support.runs import Ran, ajet, metric_rows, prove_run, run_here

SETTINGS = [
    "ajet.model={path: 'embedded:tiny-tools', dtype: float32}", "ajet.sft.objective=sft", "data.train_batch_size=4",
    "trainer_common.threads=1", "trainer_common.optim.lr=0.001", "trainer_common.test_freq=2",
    "trainer_common.total_training_steps=2", "trainer_common.keep_best=false",
]  # fmt: skip


def asked(item: str, price: int) -> dict:
    return {"messages": [{"role": "user", "content": f"What does the {item} cost?"},
                         {"role": "assistant", "content": f"\\boxed{{{price}}}"}]}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    rows = [asked(item, 10 + at) for at, item in enumerate(("eel", "ham", "jam", "fig", "tea", "pie"))]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held.jsonl").write_text(json.dumps(asked("nut", 31)) + "\n")
    (tmp_path / "sft.yaml").write_text("ajet: {sft: {train_files: rows.jsonl, val_files: [held.jsonl]}}\n")
    return tmp_path


def teach(project: Path, *more: str, backbone: str = "local") -> Ran:
    where = ["--conf", project / "sft.yaml", "--backbone", backbone, "--exp-dir", project / "runs"]
    return run_here(*where, *SETTINGS, *more)


@pytest.mark.slow
def test_it_is_recorded_resumed_and_proven(project):
    first, again = teach(project), teach(project, "trainer_common.total_training_steps=3")
    assert (first.code, again.code) == (0, 0), first.printed + again.printed
    run = project / "runs" / "sft"
    rows = metric_rows(run)
    trained = [row for row in rows if "tasks" in row]
    assert [row["step"] for row in trained] == [1, 2, 3] and all(row["train/rows"] == 4 for row in trained)
    assert sorted(order for row in trained for order in row["tasks"]) == [*range(12)], "none skipped, none doubled"
    held = [row["validation/loss"] for row in rows if "validation/loss" in row]
    assert len(held) == 2 and trained[-1]["loss"] < trained[0]["loss"]
    (checkpoint, *_) = sorted((run / "checkpoints").glob("step-*"))
    assert (checkpoint / "model.safetensors").exists() and (run / "metrics.png").exists()
    report = prove_run(run)
    counts, episodes = report["classes"]["sampled"], EpisodeFiles(run / "episodes").read(1)
    assert report["ok"] and report["held_steps"] == 3, report["wrong_steps"]
    total = sum(row["train/trained_tokens"] for row in trained)
    assert counts["tokens"] == counts["equal"] == total == report["unproven"]["written"], "given = trained"
    assert all(call.terms.written and not call.versions for episode in episodes for call in episode.calls)
    assert "resumed after step 2" in again.printed + (run / "logs" / "sft_trainer_0.log").read_text()


def test_what_cannot_be_is_told_before_a_model_is_loaded(project):
    refused = (
        (["ajet.sft.train_files=null"], "a file of rows to learn from"),
        (["ajet.sft.from_run=nowhere"], "sft.from_run"),
        (["ajet.sft.train_files=null", "ajet.sft.from_run=nowhere"], "no run named nowhere"),
        (["rollout.max_model_len=16"], "longer than rollout.max_model_len"),
        (["ajet.sft.train_files=none.jsonl"], "The file of rows none.jsonl does not exist"),
        (["ajet.sft.train_files=wrong.jsonl"], "A row cannot be used"),
    )
    (project / "wrong.jsonl").write_text('{"messages": 3}\n')
    for number, (more, why) in enumerate(refused):
        refusal = teach(project, f"experiment_name=e{number}", *more)
        assert refusal.code == 2 and why in refusal.printed, refusal.printed
    assert not list((project / "runs").glob("*")), "no run is listed that never began"
    planned = teach(project, "--dry-run")
    assert planned.code == 2 and "no plan for learning from given replies" in planned.printed
    played = teach(project, backbone="debug")
    assert played.code == 2 and "train on given replies" in played.printed


@pytest.mark.extra_slow
def test_the_commands_that_follow_a_training_follow_it(project, tmp_path):
    """A run is played, its best episodes are learned, pairs of it are, and what comes of that is tried."""
    assert ajet("init", "tool", "--template", "tool", cwd=project).returncode == 0
    yaml, pace = "tool/tool.yaml", ["trainer_common.threads=1", "data.train_batch_size=6", "rollout.num_repeat=4"]
    two = "trainer_common.total_training_steps=2"
    played = ajet("--conf", yaml, "--backbone", "local", two, "experiment_name=rl", *pace, cwd=project)
    assert played.returncode == 0, played.stdout
    for objective in ("sft", "dpo"):
        named = ["--objective", objective, "--from-run", "rl", f"experiment_name={objective}", two, *pace[:2]]
        if objective == "dpo":  # what reinforcement learning left is where it begins
            named.append(f"model.path={project / 'launcher_record/rl/checkpoints/step-2'}")
        learned = ajet("sft", "--conf", yaml, *named, cwd=project)
        assert learned.returncode == 0, learned.stdout
        run = project / "launcher_record" / objective
        told = EpisodeFiles(run / "episodes").read(1)
        by_uuid = {e.uuid: e for step in (1, 2) for e in EpisodeFiles(run.parent / "rl" / "episodes").read(step)}
        for episode in told:
            source = by_uuid[episode.metadata["learned_from"]]
            assert [c.response_ids.tolist() for c in episode.calls] == [c.response_ids.tolist() for c in source.calls]
            assert [t.ids.tolist() for t in episode.timelines] == [t.ids.tolist() for t in source.timelines]
        if objective == "dpo":
            rewards = {(e.group, e.repeat): e.reward for e in told}
            assert all(rewards[group, 0] > rewards[group, 1] for group, _ in rewards)
        proven = ajet("prove", objective, cwd=project)
        assert proven.returncode == 0 and "No wrong token" in proven.stdout, proven.stdout
    for after in (["chat", "sft", "--prompt", "What does the eel cost?"], ["export", "sft", "--out", "out"],
                  ["eval", "sft", "--model", "latest"], ["audit", "sft"]):  # fmt: skip
        done = ajet(*after, cwd=project)
        assert done.returncode == 0, (after, done.stdout)
    begun = ["--conf", yaml, "--backbone", "local", "experiment_name=then_rl", "model.path=out", two, *pace]
    assert ajet(*begun, cwd=project).returncode == 0, "reinforcement learning begins from what was learned"
