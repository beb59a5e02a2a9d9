"""What goes wrong on verl, on a cluster that was there before: an agent that raises, a tool that hangs, servers that
die, settings that cannot work."""

import os
import signal
import time

import pytest

from ajet.record import EpisodeFiles
from tests.support.ajet_process import ajet
from tests.support.verl_runs import Life, all_gone, ray_cluster, skip_without_verl, tool_project

pytestmark = pytest.mark.slow

FAULTY = '''

class Faulty(PriceAgent):
    """Of eight attempts one raises and one hangs in a tool."""

    async def execute(self, workflow_task, tuner):
        if workflow_task.task_thread_index == 3:
            raise ValueError("a broken agent")
        if workflow_task.task_thread_index == 5:
            import time

            time.sleep(3600)
        return await super().execute(workflow_task, tuner)
'''


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """A run of the faulty agent, whose servers are killed after its second step."""
    skip_without_verl()
    yaml = tool_project(tmp_path_factory.mktemp("verl"))
    code = yaml.parent / "workflow.py"
    code.write_text(code.read_text() + FAULTY)
    settings = [
        "rollout.user_workflow=workflow.py->Faulty",
        "rollout.episode_timeout=120",
        "trainer_common.val_before_train=false",
        "data.train_batch_size=4",
    ]
    settings += ["trainer_common.mini_batch_num=2", "trainer_common.device=cpu"]
    with ray_cluster(yaml.parent / "ray.txt") as (address, head):
        run = Life(yaml, "faulty", *settings, cluster=address)
        try:
            run.wait_for_step(2)
            named = [(each, each.name()) for each in head.children(recursive=True)]
            servers = [each for each, name in named if "vLLMHttpServer" in name]
            rays = ("ray::IDLE", "ray::Dashb", "ray::Runtime")
            ours = [each for each, name in named if name.startswith(("ray::", "VLLM")) and not name.startswith(rays)]
            killed = time.monotonic()
            for server in servers:
                os.kill(server.pid, signal.SIGKILL)
            code = run.process.wait(timeout=300)
            seen = {"servers": len(servers), "exit": code, "after": time.monotonic() - killed}
            yield run, seen | {"alive": all_gone(ours), "cluster": head.is_running()}
        finally:
            run.end()


@pytest.mark.extra_slow
@pytest.mark.boots
def test_failed_episodes_are_recorded_and_the_others_are_trained(faulty):
    run, _ = faulty
    for step in (1, 2):
        episodes = EpisodeFiles(run.run / "episodes").read(step)
        failures = {episode.repeat: episode.failure for episode in episodes if episode.failure}
        failed = {repeat: (failure.boundary, failure.kind) for repeat, failure in failures.items()}
        assert failed == {3: ("agent", "ValueError"), 5: ("agent", "timeout")}
        assert len(episodes) == 4 * 8 and sum(episode.scored for episode in episodes) == 4 * 6
        recorded = EpisodeFiles(run.run / "episodes").recorded(step)
        assert all(outcome.step is None for episode, outcome in recorded if episode.failure)
    row = run.rows()[0]
    assert row["train/failed"] == 8 and row["tasks"] == [0, 1, 2, 3]


@pytest.mark.extra_slow
@pytest.mark.boots
def test_dead_servers_end_the_run_with_what_happened(faulty):
    run, seen = faulty
    assert seen["servers"] == 1 and seen["exit"] in (1, 2)
    assert seen["alive"] == [] and seen["cluster"], "what was there before stays, what the run brought is gone"
    said = run.log.read_text()
    assert "Traceback" not in said and ("error  verl ended the run" in said or "because of the engine" in said), said
    assert seen["after"] < 180 and run.status()["outcome"] == "failed"


@pytest.mark.slow
def test_a_wrong_configuration_is_said_before_ray_starts(tmp_path):
    skip_without_verl()
    yaml = tool_project(tmp_path)
    done = ajet("--conf", str(yaml), "--backbone", "verl", "--with-ray", "data.train_batch_size=5",
                "trainer_common.mini_batch_num=2", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 2 and "cannot be divided into 2 mini-batches" in done.stdout
    assert "Ray" not in done.stdout and not (tmp_path / "launcher_record").exists()
    missing = ajet("--conf", str(yaml), "--backbone", "verl", "--with-ray-cluster", cwd=tmp_path, RAY_ADDRESS="")
    assert missing.returncode == 2 and "RAY_ADDRESS" in missing.stdout
