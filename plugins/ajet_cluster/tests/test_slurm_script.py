"""The batch script of `ajet cluster render slurm`, run by bash with stand-ins for Slurm, Ray and the run: who is
started where and told what, and who ends when. (The extra slow tests run it with real Ray.)"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from ajet.cli import exit as exits
from ajet.cli import launcher
from ajet_cluster.slurm import LEFTOVERS_MODULE, PREEMPTED
from tests.docs.snippets import ROOT
from tests.support.ajet_process import metric_rows
from tests.support.sample_fixtures import project_in
from tests.support.verl_fixtures import without_verl

pytestmark = [without_verl, pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Slurm runs on Linux")]
SRUN = """#!/usr/bin/env bash
# Whom the step is for, then its command, once: with one node, and for all that several would do alike.
echo "$@" >>"$TOLD/srun"
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
RAY = """#!/usr/bin/env bash
# `ray health-check` answers when a head was started; `ray start --block` lasts until it is asked to end.
if [ "$1" = health-check ]; then
  echo "$@" >>"$TOLD/asked"
  until grep -qs -e --head "$TOLD/started"; do sleep 0.02; done
  exit "${HEALTH:-0}"
fi
kind=workers
for each in "$@"; do case $each in --head) kind=head ;; --temp-dir=*) mkdir -p "${each#*=}" ;; esac; done
trap 'echo "$kind" >>"$TOLD/ended"; exit 0' TERM
echo "$@" "$RAY_AUTH_MODE ${#RAY_AUTH_TOKEN}" >>"$TOLD/started"
while :; do sleep 0.02; done
"""
RUN = """#!/usr/bin/env bash
trap 'echo run >>"$TOLD/ended"; exit "${CODE:-0}"' TERM
until [ "$(wc -l <"$TOLD/started")" = 2 ]; do sleep 0.02; done
printf '%s\\n' "$PWD" "$RAY_ADDRESS" "$@" >"$TOLD/run"
[ -n "$WAITS" ] || exit 3
while :; do sleep 0.02; done
"""
SCONTROL = """#!/bin/sh
echo "$@" >>"$TOLD/scontrol"
printf 'one\\ntwo\\n'
"""
COMMANDS = {
    "srun": SRUN, "ray": RAY, "ajet": RUN, "scontrol": SCONTROL,
    "hostname": "#!/bin/sh\necho 10.1.2.3 10.9.9.9\n",
    "python": f'#!/bin/sh\n[ "$1 $2 $3" = "-I -m {LEFTOVERS_MODULE}" ] && shift 3 && exec "$@"\n',
}  # fmt: skip


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Of a run on two nodes, beside the stand-ins in `bin`."""
    tree = {
        "model": {"path": "some/model"},
        "task_reader": {"type": "random_dummy"},
        "rollout": {"user_workflow": "agent.py->Agent"},
        "trainer_common": {"nnodes": 2, "n_gpus_per_node": 4},
        "data": {"train_batch_size": 8},
    }
    project = tmp_path / "my project"
    project.mkdir()
    (project / "x.yaml").write_text(yaml.safe_dump({"ajet": tree}))
    (project / "agent.py").write_text("from ajet import Workflow\n\n\nclass Agent(Workflow):\n    pass\n")
    with pytest.raises(SystemExit) as ended:
        launcher.main(["cluster", "render", "slurm", "--conf", str(project / "x.yaml"), "--out", str(tmp_path / "job")])
    assert ended.value.code in (0, None), capsys.readouterr().err
    (tmp_path / "bin").mkdir()
    for name, text in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "told").mkdir()
    return tmp_path / "job"


def started(script: Path, **more: str) -> subprocess.Popen[bytes]:
    binaries = script.parent / "bin"
    env = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "AJET_BIN": str(binaries), "WAITS": "", **more}
    env |= {"SLURM_JOB_ID": str(3_000_000 + os.getpid()), "SLURM_JOB_NODELIST": "n[1-2]"}
    env |= {"TOLD": str(script.parent / "told")}
    env.pop("RAY_ADDRESS", None)
    with (script.parent / "said").open("w") as said:
        return subprocess.Popen(["bash", str(script)], env=env, stdout=said, stderr=said, start_new_session=True)


def finished(script: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Its exit code and what it said; with it goes all that it left."""
    code: int | None = None
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(timeout=300)
    end = time.monotonic() + 60
    while (left := alive(process.pid)) and code is not None and time.monotonic() < end:
        time.sleep(0.02)  # one that has ended is there until the system has taken note of it
    if left:
        os.killpg(process.pid, signal.SIGKILL)
    assert code is not None, "the script waits for what nobody asked to end"
    assert not left, "what the script started is ended with it"
    return code, (script.parent / "said").read_text()


def alive(session: int) -> bool:
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


def told(script: Path, name: str) -> list[str]:
    return (script.parent / "told" / name).read_text().splitlines()


def test_the_run_is_started_beside_the_head_and_its_code_is_the_scripts(script: Path) -> None:
    process = started(script)
    code, said = finished(script, process)
    assert code == 3, said
    port = 20_000 + (3_000_000 + os.getpid()) % 10_000
    temporary = f"/tmp/ray-{3_000_000 + os.getpid()}"
    head, workers = sorted(told(script, "started"), key=lambda line: "--head" not in line)
    assert f"--node-ip-address=10.1.2.3 --port={port}" in head and f"--temp-dir={temporary}" in head
    assert f"--address=10.1.2.3:{port}" in workers and "--head" not in workers
    assert all("--num-gpus=4" in line and line.endswith("token 64") for line in (head, workers))
    assert told(script, "asked")[0] == f"health-check --address 10.1.2.3:{port}"
    folder = str(script.parent / "my project")
    assert told(script, "run") == [
        folder, f"10.1.2.3:{port}", "--conf", f"{folder}/x.yaml", "--backbone", "verl", "--with-ray-cluster",
        "--exp-dir", f"{folder}/launcher_record",
    ]  # fmt: skip
    steps = {line.split(" --cpu-bind=none --mem=0 ")[1] for line in told(script, "srun") if "--head" in line}
    assert all(step.startswith("--nodes=1 --ntasks=1 --nodelist=one ") for step in steps) and steps
    (others,) = [line for line in told(script, "srun") if f"--address=10.1.2.3:{port}" in line]
    assert "--nodes=1 --ntasks=1 --exclude=one " in others
    assert told(script, "ended") == ["workers", "head"] and not Path(temporary).exists()


@pytest.mark.parametrize("again", [True, False], ids=["a run that goes on", "a run that had ended"])
def test_a_job_whose_time_is_up_asks_the_run_to_end_and_then_ray_and_is_queued_again(script: Path, again: bool) -> None:
    code = str(PREEMPTED if again else 0)
    process, end = started(script, WAITS="yes", CODE=code), time.monotonic() + 60
    while not (script.parent / "told" / "run").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    ended, said = finished(script, process)
    assert ended == 143 and PREEMPTED == exits.PREEMPTED, said
    assert told(script, "ended") == ["run", "workers", "head"]
    assert told(script, "scontrol")[1:] == ([f"requeue {3_000_000 + os.getpid()}"] if again else [])
    (signalled,) = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH --signal")]
    assert signalled.startswith("#SBATCH --signal=B:TERM@"), "it is the script that hears it, before the limit"


@pytest.mark.extra_slow
def test_a_job_that_is_taken_away_is_queued_again_and_its_run_goes_on_to_its_end(script: Path, tmp_path: Path) -> None:
    """A real training in the run's place (`local`: a test of verl's own is `test_cluster_slurm`), two steps before it
    is taken away and two after. What Slurm does, the test does: who asks for it is started again."""
    project = tmp_path / "trained"
    project.mkdir()
    project_in(project)
    settings = ["trainer_common.total_training_steps=4", "data.train_batch_size=2", "rollout.num_repeat=2"]
    trains = ["--conf", "sums.yaml", "--backbone", "local", "--no-rehearsal", "trainer_common.grace=1", *settings]
    (script.parent / "bin" / "ajet").write_text(
        f"#!/bin/sh\ncd {project}\nexport PYTHONPATH={ROOT} OMP_NUM_THREADS=1\n"
        f"exec {shlex.join([sys.executable, '-m', 'ajet.cli.launcher', *trains])}\n"
    )
    run, hold = project / "launcher_record" / "sums", project / "hold"
    hold.touch()
    process, end = started(script), time.monotonic() + 600
    while len(metric_rows(run)) < 2 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, said = finished(script, process)
    assert code == 143 and told(script, "scontrol")[1:] == [f"requeue {3_000_000 + os.getpid()}"], said
    assert (tmp_path / "told" / "ended").read_text().split() == ["workers", "head"]
    (tmp_path / "told" / "started").unlink()
    hold.unlink()
    code, said = finished(script, started(script))
    assert code == 0 and "8 tasks trained, 0 skipped, 0 doubled" in said, said
    assert len(told(script, "scontrol")) == 3, "each start asked for the nodes, and nobody to be queued again"
    assert [row["step"] for row in metric_rows(run) if "tasks" in row] == [1, 2, 3, 4]
    assert "resumed after step 2" in (run / "logs" / "sums_trainer_0.log").read_text()


def test_a_head_that_does_not_answer_ends_the_job_before_the_run(script: Path) -> None:
    (script.parent / "bin" / "ray").write_text("#!/bin/sh\nexit 1\n")
    code, said = finished(script, started(script))
    assert code == 1 and "Ray's head on one does not answer" in said
    assert not (script.parent / "told" / "run").exists()
