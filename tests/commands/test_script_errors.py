"""What a script shows of an error or interrupt from `ajet.tune` that it does not catch."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.ajet_process import environment, metric_rows

pytestmark = pytest.mark.slow
HEAD = """import ajet
from ajet.schema.errors import UserError

async def agent(task, tuner):
    words = [{"role": "user", "content": task.main_query}]
    await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=words, max_tokens=2)
    return 1.0

small = {
    "data.train_batch_size": 1, "data.max_prompt_length": 60, "data.max_response_length": 30,
    "trainer_common.threads": 1, "trainer_common.stop_after_idle_steps": 0,
    "rollout.num_repeat": 2, "rollout.max_model_len": 100,
}
given = {"agent": agent, "tasks": ["a"], "model": "embedded:tiny-tools", "name": "s", "steps": 9999}
"""


def script(folder: Path, text: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(HEAD + text)
    return subprocess.Popen(
        [sys.executable, "script.py"], cwd=folder, env=environment(), text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ('ajet.tune(**given, settings={"rollout.n": 3})', "rollout.num_repeat"),
        ('ajet.AgentJetJob(name="s").set(rollout__val_kwargs__n=3).experiment()', "rollout.val_kwargs.num_repeat"),
        ("ajet.tune(**{**given, 'tasks': []})", "at least one task"),
    ],
)
def test_a_mistake_is_one_screen(tmp_path: Path, call: str, named: str) -> None:
    process = script(tmp_path, call)
    _, told = process.communicate(timeout=120)
    line = len((tmp_path / "script.py").read_text().splitlines())
    assert process.returncode == 2 and "Traceback" not in told and named in told
    assert f"{tmp_path / 'script.py'}:{line}" in told


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 75, marks=pytest.mark.extra_slow)]
)
def test_an_interrupt_passes_through_the_script(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = script(
        tmp_path,
        "try:\n    ajet.tune(**given, settings=small)\nexcept KeyboardInterrupt:\n    print('caught')\n    raise\n"
        "finally:\n    print('cleaned up')\n",
    )
    run = tmp_path / "launcher_record" / "s"
    until = time.monotonic() + 120
    while process.poll() is None and len(metric_rows(run)) < 1 and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(number)
    said, told = process.communicate(timeout=120)
    assert process.returncode == code and "Traceback" not in told, told
    assert said.splitlines()[-2:] == ["caught", "cleaned up"] and list(run.glob("checkpoints/step-*"))


def test_other_errors_of_the_script_have_their_traceback(tmp_path: Path) -> None:
    process = script(
        tmp_path, 'try:\n    ajet.tune(**given, settings={"rollout.n": 3})\nexcept UserError:\n    1 / 0\n'
    )
    _, told = process.communicate(timeout=120)
    assert process.returncode == 1 and "ZeroDivisionError" in told and "Traceback" in told
