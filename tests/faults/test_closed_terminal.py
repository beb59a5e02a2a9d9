"""A terminal that closes under a run: the step ends, a checkpoint is saved, and the same command goes on."""

from __future__ import annotations

import fcntl
import os
import subprocess
import termios
import threading
import time
from pathlib import Path

import pytest

from tests.support.runs import ajet, command, environment, main_log, metric_rows

pytestmark = pytest.mark.extra_slow
AGENT = """
async def agent(task, tuner):
    words = [{"role": "user", "content": task.main_query}]
    await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=words, max_tokens=2)
    return 1.0
"""
YAML = """ajet:
  backbone: local
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: agent.py->agent, num_repeat: 2, max_model_len: 100}
  data: {train_batch_size: 1, max_prompt_length: 60, max_response_length: 30}
  trainer_common: {threads: 1, save_freq: 99999, stop_after_idle_steps: 0, total_training_steps: 99999}
"""


def drain(terminal: int, closing: threading.Event) -> None:
    """Read what is printed, as a terminal does, until it closes."""
    while not closing.is_set():
        try:
            os.read(terminal, 1 << 16)
        except OSError:
            return


def test_a_closed_terminal_costs_no_step(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "x.yaml").write_text(YAML)
    run = tmp_path / "launcher_record" / "x"
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        command("--conf", "x.yaml"), cwd=tmp_path, env=environment(TERM="xterm"), stdin=theirs, stdout=theirs,
        stderr=theirs, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    closing = threading.Event()
    reader = threading.Thread(target=drain, args=(ours, closing), daemon=True)
    reader.start()
    until = time.monotonic() + 120
    while process.poll() is None and len(metric_rows(run)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    closing.set()
    reader.join()
    os.close(ours)
    assert process.wait(timeout=120) == 75, main_log(run).read_text()
    (saved,) = run.glob("checkpoints/step-*")
    step = int(saved.name[5:])
    assert step >= 2 and "terminal" in main_log(run).read_text()
    done = ajet("--conf", "x.yaml", f"trainer_common.total_training_steps={step + 1}", cwd=tmp_path)
    assert done.returncode == 0 and f"resumed after step {step}" in done.stdout, done.stdout
