"""Shared memory and temporary files of processes that are killed go with the run, and nobody else's do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import psutil
import pytest

from ajet_cluster.slurm import LEFTOVERS_MODULE
from ajet_ray.cluster.leftovers import ENDED_S, POLL_S

without_shared_memory = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="only Linux has /dev/shm")
pytestmark = [pytest.mark.verl, pytest.mark.slow, without_shared_memory]

CHILD = """
import pathlib, sys, time
from multiprocessing import get_context, resource_tracker, shared_memory
pathlib.Path("/proc/self/comm").write_text(sys.argv[1])
made = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(made._name, "shared_memory")  # as where the tracker is killed, too
lock = get_context("spawn").Lock()
resource_tracker.unregister(lock._semlock.name, "semaphore")
print(made.name, "sem." + lock._semlock.name.lstrip("/"), flush=True)
time.sleep(600)
"""
RUN = f"""
import os, subprocess, sys, time
from ajet_ray.cluster import leftovers
leftovers.ENDED_S = 0.0  # its processes are ended here after it
made = leftovers.RunLeftovers()
(made.folder / "socket").touch()
print(made.folder, flush=True)
environment = {{**os.environ, "TMPDIR": str(made.folder)}}
for name in ("VLLM::Engine", "VLLM::Worker", "agent loop"):
    command = [sys.executable, "-c", {CHILD!r}, name]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    print(child.pid, child.stdout.readline().strip(), flush=True)
made.record_segments()
print("looked", flush=True)
if sys.argv[1] == "ends":
    sys.stdin.readline()
    made.close()
else:
    time.sleep(600)
"""


def gone(path: Path, within: float = 60.0) -> bool:
    end = time.monotonic() + within
    while path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return not path.exists()


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_what_processes_leave_is_removed_once_nobody_has_it(how):
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert run.stdin is not None and run.stdout is not None
    folder = Path(run.stdout.readline().strip())
    made = [run.stdout.readline().split() for _ in range(3)]
    (engine, worker, agent), pids = [name for _, name, _ in made], [int(pid) for pid, _, _ in made]
    locks = [Path("/dev/shm", lock) for _, _, lock in made]
    try:
        assert run.stdout.readline() == "looked\n"
        held = shared_memory.SharedMemory(name=worker)
        resource_tracker.unregister(held._name, "shared_memory")  # type: ignore[attr-defined]
        if how == "ends":
            run.stdin.write("\n")
            run.stdin.flush()
        else:
            run.kill()
        run.wait(timeout=60)
        assert Path("/dev/shm", engine).exists() and (folder / "socket").exists(), "their processes live"
        for pid in pids[:-1]:
            os.kill(pid, signal.SIGKILL)
        assert gone(Path("/dev/shm", engine)) and gone(locks[0]) and gone(locks[1])
        assert (folder / "socket").exists(), "one lives yet"
        os.kill(pids[-1], signal.SIGKILL)
        assert gone(folder)
        assert Path("/dev/shm", worker).exists(), "it is open here"
        held.close()
        assert gone(Path("/dev/shm", worker))
        assert Path("/dev/shm", agent).exists() and locks[2].exists(), "no server had them"
    finally:
        run.kill()
        run.stdin.close()
        run.stdout.close()
        for path in (*(Path("/dev/shm", name) for name in (engine, worker, agent)), *locks):
            path.unlink(missing_ok=True)


def test_what_ray_leaves_on_a_node_of_a_batch_job_goes_with_it():
    """Below the program that the script starts Ray with, as servers are below `ray start`."""
    child = [sys.executable, "-c", CHILD, "ray::Server"]
    ray = f"import os, subprocess\nprint(os.environ['TMPDIR'], flush=True)\nsubprocess.run({child!r})"
    command = [sys.executable, "-m", LEFTOVERS_MODULE, sys.executable, "-c", ray]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    left = [Path(node.stdout.readline().strip())]
    left += [Path("/dev/shm", name) for name in node.stdout.readline().split()]
    server = next(each for each in psutil.Process(node.pid).children(recursive=True) if each.name() == "ray::Server")
    try:
        assert len(left) == 3 and all(path.exists() for path in left)
        time.sleep(POLL_S + 2)
        node.terminate()  # Ray ends; its servers do so a moment later
        server.kill()
        assert node.wait(timeout=ENDED_S) == 128 + signal.SIGTERM
        assert not any(path.exists() for path in left)
    finally:
        node.kill()
        with suppress(psutil.NoSuchProcess):
            server.kill()
        node.stdout.close()
        for path in left[1:]:
            path.unlink(missing_ok=True)
