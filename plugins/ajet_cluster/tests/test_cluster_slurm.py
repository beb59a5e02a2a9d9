"""The batch script of `ajet cluster render slurm`, run for real: real Ray, on two "nodes" that are this machine.

Slurm's own commands are stand-ins that start a step where the real ones would. In the place of the run is a program
that joins the cluster as the run would, since a training on verl takes minutes; the last test has one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.support.ajet_process import ajet, metric_rows
from tests.support.verl_fixtures import without_verl
from tests.support.verl_runs import tool_project

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots, without_verl]
PATIENCE_S = 240.0
"""On a machine that others are using, too, Ray takes long to start."""
SRUN = """#!/usr/bin/env bash
# One process for every node of the step; ended when srun is.
nodes=(one two) command=()
while [ $# -gt 0 ]; do
  case $1 in
    --nodelist=*) nodes=("${1#*=}") ;;
    --exclude=*) for each in "${!nodes[@]}"; do [ "${nodes[each]}" != "${1#*=}" ] || unset "nodes[each]"; done ;;
    --*) ;;
    *) command=("$@"); break ;;
  esac
  shift
done
if [ ${#nodes[@]} -eq 1 ]; then exec "${command[@]}"; fi
for _ in "${nodes[@]}"; do "${command[@]}"; done
"""
RUN = """#!{python}
import json, os, pathlib, signal, sys, time
import ray
told = pathlib.Path(os.environ["TOLD"])
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
while len(alive := [node for node in ray.nodes() if node["Alive"]]) < 2 or ray.cluster_resources()["GPU"] < 4:
    time.sleep(0.1)
told.write_text(json.dumps({{"arguments": sys.argv[1:], "cwd": os.getcwd(), "nodes": len(alive),
    "gpus": ray.cluster_resources()["GPU"], "answer": ray.get(ray.remote(num_gpus=1)(lambda: 42).remote())}}))
if os.environ.get("WAITS"):
    def ended(*_):
        told.with_name("ended").touch()
        sys.exit(0)
    signal.signal(signal.SIGTERM, ended)
    told.with_name("ready").touch()
    time.sleep(600)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rendered script, beside the stand-ins in `bin` and the run's in `env`."""
    folder = tmp_path_factory.mktemp("slurm")
    tree = {
        "model": {"path": "embedded:tiny-tools"},
        "task_reader": {"type": "random_dummy"},
        "rollout": {"user_workflow": "agent.py->Agent", "max_model_len": 1000},
        "trainer_common": {"nnodes": 2, "n_gpus_per_node": 2, "device": "cpu"},
        "data": {"train_batch_size": 4, "max_prompt_length": 500, "max_response_length": 500},
    }
    (folder / "x.yaml").write_text(yaml.safe_dump({"ajet": tree}))
    (folder / "agent.py").write_text("from ajet import Workflow\n\n\nclass Agent(Workflow):\n    pass\n")
    done = ajet("cluster", "render", "slurm", "--conf", "x.yaml", "--out", "run.sh", cwd=folder)
    assert done.returncode == 0, done.stdout
    (folder / "bin").mkdir()
    (folder / "env").mkdir()
    for name, text in {
        "bin/srun": SRUN,
        "bin/scontrol": "#!/bin/sh\nprintf 'one\\ntwo\\n'\n",
        "env/ajet": RUN.format(python=sys.executable),
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    programs(folder / "env", "python", "ray")
    return folder / "run.sh"


def programs(folder: Path, *names: str) -> None:
    """Those of this environment, in another folder: a link to its Python would not be of it."""
    for name in names:
        (folder / name).write_text(f'#!/bin/sh\nexec "{Path(sys.executable).parent / name}" "$@"\n')
        (folder / name).chmod(0o755)


@pytest.fixture
def sbatch(script, tmp_path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], str]]]:
    """sbatch's part: starts the script with the job's variables; answers it and the job's temporary folder."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(**more: str) -> tuple[subprocess.Popen[bytes], str]:
        process, temporary = started(script, tmp_path / "told", **more)
        processes.append(process)
        return process, temporary

    yield start
    for process in processes:
        process.terminate()  # its trap ends what it has started
        process.wait(timeout=240)


def started(script: Path, told: Path, **more: str) -> tuple[subprocess.Popen[bytes], str]:
    job = str(100_000 + os.getpid() + 7_000 * bool(more))
    env = {
        **os.environ,
        "PATH": f"{script.parent / 'bin'}:{os.environ['PATH']}",
        "AJET_BIN": str(script.parent / "env"),
    }
    env |= {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-2]", "TOLD": str(told), **more}
    env.pop("RAY_ADDRESS", None)
    with (told.parent / "log").open("w") as log:
        process = subprocess.Popen(["bash", str(script)], env=env, stdout=log, stderr=log, start_new_session=True)
    return process, f"/tmp/ray-{job}"


def left_over(temporary: str) -> list[str]:
    """Processes that still know the job's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(temporary in word for word in process.cmdline()):
                found.append(" ".join(process.cmdline())[:120])
        except psutil.Error:
            continue
    return found


def test_ray_is_started_on_all_nodes_and_ends_after_the_run_when_the_time_is_up(script, sbatch, tmp_path):
    process, temporary = sbatch(WAITS="yes")
    end = time.monotonic() + PATIENCE_S
    while not (tmp_path / "ready").exists():
        assert process.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 143, (tmp_path / "log").read_text()
    assert (tmp_path / "ended").exists()
    told = yaml.safe_load((tmp_path / "told").read_text())
    assert (told["nodes"], told["gpus"], told["answer"]) == (2, 4.0, 42)
    assert told["cwd"] == str(script.parent)
    assert told["arguments"] == [
        "--conf", str(script.parent / "x.yaml"), "--backbone", "verl", "--with-ray-cluster",
        "--exp-dir", str(script.parent / "launcher_record"),
    ]  # fmt: skip
    assert left_over(temporary) == [] and not Path(temporary).exists()


def test_the_runs_exit_code_is_the_scripts(sbatch, tmp_path):
    process, temporary = sbatch()
    assert process.wait(timeout=PATIENCE_S) == 3, (tmp_path / "log").read_text()
    assert left_over(temporary) == [] and not Path(temporary).exists()


def test_a_training_runs_through_the_script_on_both_nodes(script, tmp_path):
    yaml_file = tool_project(tmp_path)
    chosen = ["trainer_common.nnodes=2", "trainer_common.n_gpus_per_node=1", "trainer_common.device=cpu"]
    chosen += ["trainer_common.total_training_steps=2", "trainer_common.save_freq=2", "trainer_common.test_freq=-1"]
    rendered = ["cluster", "render", "slurm", "--conf", str(yaml_file), "--out", "run.sh"]
    done = ajet(*rendered, *chosen, "data.train_batch_size=4", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    (tmp_path / "bin").symlink_to(script.parent / "bin")
    (tmp_path / "env").mkdir()
    programs(tmp_path / "env", "ajet", "python", "ray")
    process, temporary = started(tmp_path / "run.sh", tmp_path / "told")
    try:
        assert process.wait(timeout=900) == 0, (tmp_path / "log").read_text()[-4000:]
    finally:
        process.terminate()
    rows = [row for row in metric_rows(yaml_file.parent / "launcher_record" / "tool") if "tasks" in row]
    assert [row["step"] for row in rows] == [1, 2] and all(row["grad_norm"] > 0 for row in rows)
    assert (yaml_file.parent / "launcher_record" / "tool" / "checkpoints" / "step-2").is_dir()
    assert left_over(temporary) == [] and not Path(temporary).exists()
