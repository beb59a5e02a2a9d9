"""kill -9 and Ctrl-C at random moments, validations among them, then the same command again: nothing lost, nothing
trained twice, every bit the same."""

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ajet.record import EpisodeFiles
from tests.support.runs import ajet, audit_run, count_tasks, main_log, metric_rows, start

pytestmark = pytest.mark.slow
STEPS = 8
VALIDATION = ("validation/reward", "validation/reply_tokens", "validation/sampled_tokens", "validation/calls")
SETTINGS = [
    "rollout.deterministic=true", f"trainer_common.total_training_steps={STEPS}", "trainer_common.save_freq=1",
    "trainer_common.test_freq=2", "trainer_common.val_before_train=true", "data.train_batch_size=4",
    "rollout.num_repeat=4", "trainer_common.threads=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    made = ajet("init", "tool", "--template", "tool", cwd=folder)
    assert made.returncode == 0, made.stdout
    return folder


@pytest.fixture(scope="module")
def uninterrupted(project):
    done = ajet(*launch(project), "experiment_name=whole", cwd=project)
    assert done.returncode == 0, done.stdout
    return project / "launcher_record" / "whole"


def launch(project: Path) -> list[str]:
    yaml = next((project / "tool").glob("*.yaml"))
    return ["--conf", str(yaml), "--backbone", "local", *SETTINGS]


def learned(run: Path) -> dict[str, bytes]:
    """The last checkpoint's weights and optimizer, as bytes."""
    folder = run / "checkpoints" / f"step-{STEPS}"
    files = [folder / "model.safetensors", *(folder / "trainer").iterdir()]
    return {path.name: path.read_bytes() for path in files}


def logprobs(run: Path, step: int) -> list[bytes]:
    """Of every token that the validation after a step sampled."""
    episodes = EpisodeFiles(run / "episodes").read(step, "validation")
    return [call.logprobs_unit.tobytes() for episode in episodes for call in episode.calls]


@pytest.mark.extra_slow
def test_a_curriculum_goes_on_after_kill_9(project, tmp_path):
    """With epochs of three batches: which tasks the later ones have depends on what came of the first."""
    drawn = ["data.curriculum.prefer=uncertain", "data.curriculum.share=0.375"]
    whole = ajet(*launch(project), *drawn, "experiment_name=drawn", cwd=project)
    assert whole.returncode == 0, whole.stdout
    run = project / "launcher_record" / "killed-drawn"
    for step in (2, 5):
        log = tmp_path / f"log-{step}"
        process = start(*launch(project), *drawn, "experiment_name=killed-drawn", cwd=project, log=log)
        while process.poll() is None and len([row for row in metric_rows(run) if "tasks" in row]) < step:
            time.sleep(0.02)  # polls the record
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = ajet(*launch(project), *drawn, "experiment_name=killed-drawn", cwd=project)
    assert done.returncode == 0, done.stdout
    check_whole(run, project / "launcher_record" / "drawn")
    played = [
        [episode.task.task_id for episode in EpisodeFiles(where / "episodes").read(step)]
        for where in (run, project / "launcher_record" / "drawn")
        for step in range(1, STEPS + 1)
    ]
    assert played[:STEPS] == played[STEPS:]
    proven = ajet("prove", "killed-drawn", cwd=project)
    assert proven.returncode == 0 and f"Credit of {STEPS} steps recomputed" in proven.stdout, proven.stdout


def check_whole(run: Path, reference: Path) -> None:
    """The interrupted run equals the whole one: tasks, rewards, validations, weights, to the bit."""
    rows, expected = metric_rows(run), metric_rows(reference)
    assert count_tasks(rows) == (0, 0, ())
    trained = [row["step"] for row in rows if "tasks" in row]
    assert trained == [row["step"] for row in expected if "tasks" in row] == list(range(1, STEPS + 1))
    validated = [row["step"] for row in rows if "validation/reward" in row]
    assert validated == [row["step"] for row in expected if "validation/reward" in row] == list(range(0, STEPS + 1, 2))
    for name in ("tasks", "train/reward", "train/sampled_tokens", "loss", "grad_norm", *VALIDATION):
        assert [row.get(name) for row in rows] == [row.get(name) for row in expected], name
    for step in validated:
        assert logprobs(run, step) == logprobs(reference, step), f"validation after step {step}"
    assert learned(run) == learned(reference)
    audited = audit_run(run)
    assert audited["ok"] and audited["chain"]["steps"] == STEPS, audited["changes"]


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.extra_slow) for n in range(2, 8))])
def test_kill_9_at_random_moments(project, uninterrupted, seed, tmp_path):
    moments, name = random.Random(seed), f"killed{seed}"
    run = project / "launcher_record" / name
    kills = 1 if seed == 1 else 3
    for number in range(kills):
        last = number == kills - 1  # there is something to go on from
        process = start(*launch(project), f"experiment_name={name}", cwd=project, log=tmp_path / "log")
        target = len(metric_rows(run)) + 1
        while process.poll() is None and (
            len(metric_rows(run)) < target or (last and not any(run.glob("checkpoints/step-*")))
        ):
            time.sleep(0.02)  # polls the record; the moment itself is drawn below
        time.sleep(moments.uniform(0, 0.6))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = ajet(*launch(project), f"experiment_name={name}", cwd=project)
    assert done.returncode == 0, done.stdout
    said = [line for line in main_log(run).read_text().splitlines() if "resumed after step" in line]
    assert said and all("skipped 0, doubled 0" in line for line in said), said
    check_whole(run, uninterrupted)


def test_ctrl_c_keeps_what_is_done(project, uninterrupted, tmp_path):
    log = tmp_path / "log"
    for name in ("interrupted", "interrupted-2", "interrupted-3"):  # on a busy machine it may be over before the signal
        run = project / "launcher_record" / name
        seldom = "trainer_common.save_freq=99999"
        process = start(*launch(project), f"experiment_name={name}", seldom, cwd=project, log=log)
        while process.poll() is None and sum("tasks" in row for row in metric_rows(run)) < 2:
            time.sleep(0.02)  # until step 2, whose validation the signal most likely hits
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)
        if (code := process.wait(timeout=240)) != 0:
            break
    assert code == 130, log.read_text()
    assert list(run.glob("checkpoints/step-*")), "an interrupted run leaves a checkpoint whatever save_freq says"
    done = ajet(*launch(project), f"experiment_name={name}", seldom, cwd=project)
    assert done.returncode == 0, done.stdout
    check_whole(run, uninterrupted)


@pytest.mark.extra_slow
def test_sigterm_lets_the_step_end_and_asks_to_be_queued_again(project, tmp_path):
    name, log = "preempted", tmp_path / "log"
    run = project / "launcher_record" / name
    process = start(*launch(project), f"experiment_name={name}", "trainer_common.save_freq=99999", cwd=project, log=log)
    while process.poll() is None and json.loads(status(run)).get("phase") != "rollout":
        time.sleep(0.02)
    under_way = json.loads(status(run))["step"]
    process.terminate()
    assert process.wait(timeout=240) == 75, log.read_text()
    (saved,) = run.glob("checkpoints/step-*")
    assert int(saved.name[5:]) >= under_way, "the step that was being played when the signal came"
    audited = audit_run(run)
    assert audited["ok"] and audited["checkpoints"] == [int(saved.name[5:])], audited["changes"]


def status(run: Path) -> str:
    file = run / "status.json"
    return file.read_text() if file.exists() else "{}"


def test_ajet_stop_ends_a_live_run_as_ctrl_c_would(project, tmp_path):
    name, log = "stopped", tmp_path / "log"
    run = project / "launcher_record" / name
    longer = [
        "trainer_common.save_freq=99999",
        "trainer_common.total_training_steps=9999",
    ]  # it goes on until it is stopped
    process = start(*launch(project), f"experiment_name={name}", *longer, cwd=project, log=log)
    while process.poll() is None and len(metric_rows(run)) < 2:
        time.sleep(0.02)
    stopped = ajet("stop", name, cwd=project)
    assert stopped.returncode == 0 and "stopped" in stopped.stdout, stopped.stdout
    assert process.wait(timeout=240) == 130, log.read_text()
    assert list(run.glob("checkpoints/step-*"))
    again = ajet("stop", name, cwd=project)
    assert again.returncode == 0 and "not in progress" in again.stdout, again.stdout
