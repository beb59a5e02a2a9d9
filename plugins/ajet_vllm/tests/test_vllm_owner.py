"""The watch that ends vLLM's processes with the one that started them, on processes that are not vLLM's: the extra slow
tests of the engine kill a real owner."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import ajet_vllm

OWNER_PY = Path(ajet_vllm.__file__).parent / "owner.py"
WORKER = f"""
import runpy, sys, time
runpy.run_path({str(OWNER_PY)!r})["end_with_owner"]()
print("watching", flush=True)
time.sleep(600)
"""
CORE = f"""
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdout=subprocess.PIPE, text=True)
print(worker.stdout.readline().strip(), worker.pid, flush=True)
worker.wait()
time.sleep(600)
"""
OWNER = f"""
import os, subprocess, sys
os.environ["AJET_VLLM_OWNER"] = str(os.getpid())
core = subprocess.Popen([sys.executable, "-c", {CORE!r}], stdout=subprocess.PIPE, text=True, start_new_session=True)
print(core.stdout.readline().strip(), core.pid, flush=True)
core.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="vLLM runs on Linux only")
def test_core_and_worker_end_with_a_killed_owner() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    word, worker, core = owner.stdout.readline().split()
    processes = [psutil.Process(int(pid)) for pid in (worker, core)]
    assert word == "watching" and all(process.is_running() for process in processes)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    _, alive = psutil.wait_procs(processes, timeout=60)
    left = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    for process in left:
        process.kill()
    assert left == []
