"""`rollout.isolation: loops`: however the run ends, nothing of its processes and of what they started stays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.runs import ajet, start
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.extra_slow]

WORKFLOW = """
import asyncio, os, signal, subprocess
from pathlib import Path
from ajet import Workflow, WorkflowOutput

HERE = Path(__file__).parent
DEAF = "trap '' TERM; echo; while :; do sleep 0.1; done"

def noted(what):
    (HERE / "seen" / what).touch()

class Hangs(Workflow):
    async def execute(self, task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        await client.chat.completions.create(messages=[{"role": "user", "content": "x"}])
        tuner.resources.callback(noted, f"closed-{task.task_tag}")
        child = subprocess.Popen(["sh", "-c", DEAF], start_new_session=True, stdout=subprocess.PIPE)
        child.stdout.read(1)
        noted(f"pid-{child.pid}")
        noted(f"pid-{os.getpid()}")
        noted(f"hangs-{task.task_tag}")
        await asyncio.Event().wait()

class DiesOnce(Workflow):
    async def execute(self, task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        await client.chat.completions.create(messages=[{"role": "user", "content": task.task.main_query}])
        if task.task.main_query == "q0":
            try:
                (HERE / "seen" / "died").touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return WorkflowOutput(reward=float(task.task_thread_index))
"""

YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  data: {train_batch_size: 2}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}
  rollout:
    user_workflow: flow.py->%s
    isolation: loops
    processes: 2
    num_repeat: 2
    max_env_worker: 4
    max_response_length_in_one_turn: 4
    max_model_len: 512
    episode_timeout: null
  debug: {debug_max_parallel: 4, debug_first_n_tasks: 2}
  trainer_common: {total_training_steps: 2, threads: 1}
"""


def project(folder: Path, workflow: str) -> Path:
    (folder / "seen").mkdir()
    (folder / "flow.py").write_text(WORKFLOW)
    (folder / "x.yaml").write_text(YAML % workflow)
    (folder / "tasks.jsonl").write_text("".join(f'{{"main_query": "q{k}"}}\n' for k in range(4)))
    return folder / "seen"


def status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def is_gone(pid: int) -> bool:
    return status(pid) == psutil.STATUS_ZOMBIE


def interrupt_again(run: Any, pids: list[int], again: int = signal.SIGINT) -> None:
    """Ctrl-C, and a signal while a process stands still, about to be ended."""
    os.kill(run.pid, signal.SIGINT)
    until(lambda: run.poll() is not None or any(status(pid) == psutil.STATUS_STOPPED for pid in pids))
    run.send_signal(again)


ENDS: dict[str, Callable[[Any, list[int]], None]] = {
    "kill -9": lambda run, _: run.send_signal(signal.SIGKILL),
    "Ctrl-C": lambda run, _: run.send_signal(signal.SIGINT),
    "Ctrl-C twice": interrupt_again,
    "kill -9 after Ctrl-C": lambda run, pids: interrupt_again(run, pids, signal.SIGKILL),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_stays_of_a_run_that_ends_while_its_agents_play(end: str, tmp_path: Path) -> None:
    """Where the run was killed, its processes were gone before they had closed what was open, and children in sessions
    of their own stayed; where it was told twice to end, a process stood still for ever."""
    seen = project(tmp_path, "Hangs")
    run = start("--conf", "x.yaml", "--backbone", "debug", cwd=tmp_path, log=tmp_path / "log")
    assert until(lambda: run.poll() is not None or len(list(seen.glob("hangs-*"))) == 4)
    assert run.poll() is None, (tmp_path / "log").read_text()
    pids = [int(file.name[4:]) for file in seen.glob("pid-*")]
    ENDS[end](run, pids)
    run.wait(timeout=300)
    assert until(lambda: all(map(is_gone, pids))), [status(pid) for pid in pids]
    assert list(seen.glob("closed-*")), "in two seconds, in which a busy machine may not come to all of them"


def test_a_process_that_is_killed_costs_a_training_nothing(tmp_path: Path) -> None:
    """Its attempts are played again, each group is trained once, and the record is whole."""
    project(tmp_path, "DiesOnce")
    done = ajet("--conf", "x.yaml", "--backbone", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    audited = ajet("audit", "x", cwd=tmp_path)
    assert audited.returncode == 0, audited.stdout
    assert (tmp_path / "seen" / "died").exists()
    proven = ajet("prove", "x", cwd=tmp_path)
    assert proven.returncode == 0, proven.stdout
