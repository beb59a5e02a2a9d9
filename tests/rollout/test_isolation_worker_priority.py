"""Workers give way to the process that started them, and none outlives it."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ajet.rollout.isolation.messages import WorkerSetup
from ajet.rollout.isolation.worker_process import (
    NICE_STEPS,
    StartedWorker,
    WorkerProcess,
    lower_priority,
    lower_session_priority,
)
from ajet.schema.endpoint import Endpoint


def groups_can_be_told() -> bool:
    """Whether this system has groups of sessions and takes a change of theirs at once: from root alone."""
    mine = Path("/proc/self/autogroup")
    try:
        mine.write_text(mine.read_text().split()[-1])
    except (OSError, IndexError):
        return False
    return os.geteuid() == 0


def test_a_worker_gives_way_and_so_does_its_session(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        setup = WorkerSetup("flow.py->Flow", tmp_path, (), Endpoint("http://localhost/v1", "key", "default"))
        worker = WorkerProcess(setup, lambda *_: StartedWorker(process))
        assert worker.is_alive
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(os.getpriority(os.PRIO_PROCESS, 0) + NICE_STEPS, 19)
        if groups_can_be_told():
            assert Path(f"/proc/{process.pid}/autogroup").read_text().split()[-2:] == ["nice", str(NICE_STEPS)]
    finally:
        process.kill()
        process.wait()
    lower_priority(process.pid)
    lower_session_priority(process.pid)  # of one that has ended, nothing


ENDS_AT_ONCE = """
from pathlib import Path
from ajet.rollout.isolation.messages import WorkerSetup
from ajet.rollout.isolation.worker_process import WorkerProcess, start_process
from ajet.schema.endpoint import Endpoint

setup = WorkerSetup("flow.py->Flow", Path(), (), Endpoint("http://localhost/v1", "key", "default"))
worker = WorkerProcess(setup, start_process)
print(worker.pid)
worker.kill()
"""


@pytest.mark.slow
def test_a_worker_that_is_being_ended_does_not_outlive_its_program(tmp_path: Path) -> None:
    """It stood still for ever where the program was gone between its last word and its end."""
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", ENDS_AT_ONCE]
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not psutil.pid_exists(int(done.stdout))
