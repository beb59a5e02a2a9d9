"""The whole life of a run on verl: an agent-loop process dies, the run is killed with -9, goes on, and is stopped; its
curve is the local backbone's. (test_verl_life.py is what of it needs one launch only.)"""

import os
import signal
from pathlib import Path

import pytest

from ajet.commands.summary import RunTally
from ajet.record import EpisodeFiles
from ajet_proof.auditing.audit import audit_run
from ajet_ray.cluster.leftovers import list_segments
from tests.support.ajet_process import ajet, metric_rows
from tests.support.verl_runs import Life, accounted, all_gone, skip_without_verl, tool_project

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """Everything that is done to the run; the tests look at what came of it."""
    skip_without_verl()
    yaml = tool_project(tmp_path_factory.mktemp("verl"))
    seen = {}
    first = Life(yaml, "life")
    try:
        first.wait_for_step(2)
        seen["roles"] = {entry["role"] for entry in first.status()["processes"]}
        (worker,) = first.processes("agent loop")
        os.kill(worker.pid, signal.SIGKILL)
        first.wait_for_step(4)
        seen["after the worker died"] = first.log.read_text()
        first.wait_for_step(5)
        left = first.processes()
        segments = {name for server in first.processes("VLLM::") for name, _ in list_segments(server.pid)}
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        seen["alive after kill -9"] = all_gone(left)
        seen["segments"] = {name: Path("/dev/shm", name).exists() for name in segments}
        seen["steps before"] = [row["step"] for row in first.rows()]
    finally:
        first.end()
    second = Life(yaml, "life")
    try:
        second.wait(lambda: "step    5/" in second.log.read_text().split("the processes of verl start")[-1], "a step")
        second.wait_for_step(9)
        left = second.processes()
        stopped = ajet("stop", "life", cwd=second.folder)
        seen["stopped"] = stopped.stdout
        seen["exit"] = second.process.wait(timeout=60)
        seen["alive after stop"] = all_gone(left)
    finally:
        second.end()
    return second, seen


def test_a_dead_agent_loop_process_is_replaced_and_its_tasks_are_played_again(life):
    run, seen = life
    assert "warning: agent loop: " in seen["after the worker died"]
    for step in (3, 4):
        episodes = EpisodeFiles(run.run / "episodes").read(step)
        assert len(episodes) == len({episode.uuid for episode in episodes}) == 128
        assert all(episode.scored for episode in episodes)


def test_nothing_is_lost_or_trained_twice(life):
    run, seen = life
    assert seen["steps before"][-1] >= 5, "it was killed after a step that no checkpoint holds"
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert row["tasks"] == list(range(16 * row["step"] - 16, 16 * row["step"])), "the order goes on where it was"
    tally = RunTally.from_rows(rows)
    assert (tally.skipped, tally.doubled) == (0, 0)
    audited = audit_run(run.run)
    assert audited.ok and audited.state is not None and len(audited.state.starts) == 2, audited.changes


def test_no_process_outlives_the_run(life):
    _, seen = life
    assert {"run", "trainer", "agent loop", "raylet", "gcs_server"} <= seen["roles"]
    assert seen["alive after kill -9"] == [] and seen["alive after stop"] == []


def test_no_shared_memory_of_its_servers_outlives_the_run(life):
    _, seen = life
    assert len(seen["segments"]) >= 2 and not any(seen["segments"].values()), seen["segments"]


def test_stop_saves_what_was_learned(life):
    run, seen = life
    last = run.rows()[-1]["step"]
    assert "life was stopped." in seen["stopped"] and seen["exit"] == 130
    assert (run.run / "checkpoints" / f"step-{last}" / f"global_step_{last}" / "actor").is_dir()
    assert run.status()["outcome"] == "interrupted"


def test_it_learns_and_engine_and_trainer_are_one_policy(life):
    rows = life[0].rows()
    rewards = [row["train/reward"] for row in rows]
    assert sum(rewards[-3:]) > 1.5 * sum(rewards[:3]), rewards
    assert max(row["logprob_gap_max"] for row in rows) < 1e-3
    assert all(row["train/staleness_max"] == 0 for row in rows)
    for row in rows:
        recorded = EpisodeFiles(life[0].run / "episodes").recorded(row["step"])
        sampled = sum(episode.sampled_tokens for episode, _ in recorded)
        assert sampled == accounted(recorded) == row["train/sampled_tokens"]


def test_the_curve_is_the_local_backbones(life):
    """Same seed, tasks and settings: the two differ by the draws of their engines only."""
    run, _ = life
    rows = run.rows()
    yaml = next((run.folder / "tool").glob("*.yaml"))
    settings = ["experiment_name=local", "model.dtype=float32", f"trainer_common.total_training_steps={len(rows)}"]
    done = ajet("--conf", str(yaml), "--backbone", "local", *settings, "trainer_common.test_freq=-1", cwd=run.folder)
    assert done.returncode == 0, done.stdout
    local = [row for row in metric_rows(run.folder / "launcher_record" / "local") if "tasks" in row]
    assert [row["tasks"] for row in local] == [row["tasks"] for row in rows]
    ours, theirs = ([row["train/reward"] for row in each] for each in (local, rows))
    apart = [abs(one - other) for one, other in zip(ours, theirs, strict=True)]
    assert sum(apart) / len(apart) < 0.12, (ours, theirs)  # one step's mean over 128 episodes has a deviation of 0.04
