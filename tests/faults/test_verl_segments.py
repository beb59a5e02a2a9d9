"""Shared memory of servers that are killed goes with the run, and nobody else's does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="only Linux has /dev/shm")]

CHILD = """
import pathlib, sys, time
from multiprocessing import resource_tracker, shared_memory
pathlib.Path("/proc/self/comm").write_text(sys.argv[1])
made = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(made._name, "shared_memory")  # as where the tracker is killed, too
print(made.name, flush=True)
time.sleep(600)
"""
RUN = f"""
import subprocess, sys, time
from ajet.run.verl.segments import Segments
segments = Segments()
for name in ("VLLM::Engine", "VLLM::Worker", "agent loop"):
    child = subprocess.Popen([sys.executable, "-c", {CHILD!r}, name], stdout=subprocess.PIPE, text=True)
    print(child.pid, child.stdout.readline().strip(), flush=True)
segments.look()
print("looked", flush=True)
if sys.argv[1] == "ends":
    sys.stdin.readline()
    segments.close()
else:
    time.sleep(600)
"""


def gone(name: str, within: float = 20.0) -> bool:
    end = time.monotonic() + within
    while Path("/dev/shm", name).exists() and time.monotonic() < end:
        time.sleep(0.05)
    return not Path("/dev/shm", name).exists()


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_what_servers_leave_is_removed_once_nobody_has_it(how):
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert run.stdin is not None and run.stdout is not None
    pairs = [run.stdout.readline().split() for _ in range(3)]
    (engine, worker, agent), pids = [name for _, name in pairs], [int(pid) for pid, _ in pairs]
    try:
        assert run.stdout.readline() == "looked\n"
        held = shared_memory.SharedMemory(name=worker)
        resource_tracker.unregister(held._name, "shared_memory")  # type: ignore[attr-defined]
        if how == "ends":
            run.stdin.write("\n")
            run.stdin.flush()
        else:
            run.kill()
        run.wait(timeout=20)
        assert Path("/dev/shm", engine).exists(), "its process lives"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert gone(engine)
        assert Path("/dev/shm", worker).exists(), "it is open here"
        held.close()
        assert gone(worker)
        assert Path("/dev/shm", agent).exists(), "no server had it"
    finally:
        run.kill()
        run.stdin.close()
        run.stdout.close()
        for name in (engine, worker, agent):
            Path("/dev/shm", name).unlink(missing_ok=True)
