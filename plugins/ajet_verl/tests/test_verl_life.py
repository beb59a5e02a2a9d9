"""One launch on verl, for what can be seen of a single one: an agent that raises, an agent-loop process that dies, a
run that is killed with -9 and leaves nothing. (What takes a second launch is in test_verl_kill_and_resume.py; what
Ray would only repeat is held without it in the other tests of this folder.)
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ajet.commands.summary import RunTally
from ajet.record import EpisodeFiles
from ajet_proof.auditing.audit import audit_run
from ajet_ray.cluster.leftovers import list_segments
from tests.support.ajet_process import ajet
from tests.support.verl_runs import Life, accounted, all_gone, remains, skip_without_verl, tool_project

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]
REPEATS, BATCH = 8, 4
SETTINGS = [
    "rollout.user_workflow=workflow.py->Faulty", "trainer_common.device=cpu", f"data.train_batch_size={BATCH}",
    "trainer_common.val_before_train=false", "trainer_common.mini_batch_num=2", "trainer_common.save_freq=1",
]  # fmt: skip
FAULTY = '''

class Faulty(PriceAgent):
    """Of eight attempts one raises."""

    async def execute(self, workflow_task, tuner):
        if workflow_task.task_thread_index == 3:
            raise ValueError("a broken agent")
        return await super().execute(workflow_task, tuner)
'''


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """Everything that is done to the run; the tests look at what came of it."""
    skip_without_verl()
    yaml = tool_project(tmp_path_factory.mktemp("verl"))
    code = yaml.parent / "workflow.py"
    code.write_text(code.read_text() + FAULTY)
    seen: dict[str, Any] = {}
    run = Life(yaml, "life", *SETTINGS)
    try:
        run.wait_for_step(1)
        seen["roles"] = {entry["role"] for entry in run.status()["processes"]}
        (worker,) = run.processes("agent loop")
        temporary = Path(worker.environ()["TMPDIR"])
        os.kill(worker.pid, signal.SIGKILL)
        run.wait_for_step(2)
        seen["after the worker died"] = run.log.read_text()
        run.wait(lambda: (run.run / "checkpoints" / "step-2" / "state.json").exists(), "the checkpoint of step 2")
        left = run.processes()
        segments = {name for server in run.processes("VLLM::") for name, _ in list_segments(server.pid)}
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        seen["alive after kill -9"] = all_gone(left)
        seen["temporary"] = remains(temporary)
        seen["segments"] = {name: Path("/dev/shm", name).exists() for name in segments}
    finally:
        run.end()
    return run, seen


def test_a_dead_agent_loop_process_is_replaced_and_its_tasks_are_played_again(life):
    run, seen = life
    assert "warning: agent loop: " in seen["after the worker died"]
    episodes = EpisodeFiles(run.run / "episodes").read(2)
    assert len(episodes) == len({episode.uuid for episode in episodes}) == BATCH * REPEATS


def test_failed_episodes_are_recorded_and_the_others_are_trained(life):
    run, _ = life
    for step in (1, 2):
        episodes = EpisodeFiles(run.run / "episodes").read(step)
        failures = {episode.repeat: episode.failure for episode in episodes if episode.failure}
        assert {at: (failure.boundary, failure.kind) for at, failure in failures.items()} == {
            3: ("agent", "ValueError")
        }
        assert sum(episode.scored for episode in episodes) == BATCH * (REPEATS - 1)
        recorded = EpisodeFiles(run.run / "episodes").recorded(step)
        assert all(outcome.step is None for episode, outcome in recorded if episode.failure)


def test_every_sampled_token_is_trained_or_counted_and_engine_and_trainer_are_one_policy(life):
    run, _ = life
    rows = run.rows()
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["tasks"] for row in rows] == [list(range(BATCH * at, BATCH * at + BATCH)) for at in range(len(rows))]
    tally = RunTally.from_rows(rows)
    assert (tally.skipped, tally.doubled) == (0, 0)
    assert max(row["logprob_gap_max"] for row in rows) < 1e-3, "each step's weights have reached the servers"
    assert all(row["train/staleness_max"] == 0 and row["train/failed"] == BATCH for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows)
    for row in rows:
        recorded = EpisodeFiles(run.run / "episodes").recorded(row["step"])
        assert {outcome.step for _, outcome in recorded} <= {row["step"], None}
        assert accounted(recorded) == row["train/sampled_tokens"]
        assert sum(episode.sampled_tokens for episode, _ in recorded) == row["train/sampled_tokens"]


def test_each_step_is_a_link_of_the_chain_and_all_of_it_is_as_it_was_committed(life):
    run, _ = life
    audited = audit_run(run.run)
    assert audited.ok and audited.state is not None, audited.changes
    assert {row["step"] for row in run.rows()} == audited.state.steps.keys() and audited.state.required


def test_no_process_and_no_shared_memory_outlives_the_run(life):
    _, seen = life
    assert {"run", "trainer", "agent loop", "raylet", "gcs_server"} <= seen["roles"]
    assert seen["alive after kill -9"] == []
    assert len(seen["segments"]) >= 2 and not any(seen["segments"].values()), seen["segments"]
    assert seen["temporary"] == [], "sockets and locks"


def test_what_it_left_is_whole(life):
    run, _ = life
    assert (run.run / "checkpoints" / "step-2" / "global_step_2" / "actor").is_dir()
    exported = ajet("export", "life", "--exp-dir", str(run.run.parent), cwd=run.folder)
    (folder,) = (run.run / "exports").iterdir()  # of step 2, or of one that was over before the run was killed
    assert exported.returncode == 0 and (folder / "config.json").is_file(), exported.stdout
    assert int(folder.name.removeprefix("step-")) >= 2
    proven = ajet("prove", "life", "--ids-only", "--exp-dir", str(run.run.parent), cwd=run.folder)
    assert proven.returncode == 0 and "No wrong token" in proven.stdout, proven.stdout
