"""Tasks that a model writes, where the process that pays for them is killed, or another one wants the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet.record import lock as run_lock
from ajet_datagen.tests.generation_fixtures import counted, examples, log_lines, prompts, read, settings, writing_server
from tests.support.judge_fixtures import JudgeServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
READS = """
import json, sys
from pathlib import Path
from ajet.config import Experiment
from ajet.task_reader import open_reader
settings = json.loads(sys.argv[1])
tasks = open_reader(Experiment.from_dict({"ajet": settings}, base=Path.cwd())).tasks("train")
print(json.dumps([task.model_dump() for task in tasks]))
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[JudgeServer]:
    with writing_server(monkeypatch, tmp_path) as running:
        yield running


class Held:
    """Says what `counted` says, but keeps one request waiting until it is let go."""

    def __init__(self, number: int) -> None:
        self.number, self.asked = number, 0
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, asked: dict[str, Any]) -> Any:
        self.asked += 1
        if self.asked == self.number:
            self.reached.set()
            self.go_on.wait(60)
        return counted(asked)


def reading(folder: Path, server: JudgeServer, **more: Any) -> subprocess.Popen[str]:
    """Another process that reads the training tasks."""
    return subprocess.Popen(
        [sys.executable, "-c", READS, json.dumps(settings(server, **more))], cwd=folder, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def test_what_was_paid_for_before_a_kill_is_not_asked_again(
    server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {**examples(tmp_path), "num_workers": 1}
    server.say = held = Held(4)
    with reading(tmp_path, server, **given) as process:
        assert held.reached.wait(120)
        process.kill()  # SIGKILL, while its fourth request is under way
    assert process.returncode == -9
    held.go_on.set()
    (file,) = (tmp_path / "cache" / "generated").glob("*.jsonl")
    with file.open("ab") as half:
        half.write(b'{"name": "train 0 5", "val')  # as a power cut leaves it
    paid, asked = prompts(server)[:3], prompts(server)[3]
    server.seen.clear()
    tasks = read(tmp_path, server, **given)
    assert prompts(server)[0] == asked and not set(paid) & set(prompts(server))

    monkeypatch.setenv("AJET_CACHE", str(tmp_path / "another"))
    assert read(tmp_path, server, **given) == tasks, "as if it had never been killed"


def test_two_processes_pay_once_and_get_the_same(
    server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "SAY_S", 0.0)
    given = examples(tmp_path)
    server.say = held = Held(2)
    with reading(tmp_path, server, **given) as process:
        assert held.reached.wait(120)
        with log_lines("INFO") as logged:
            found: list[Any] = []
            waits = threading.Thread(target=lambda: found.extend(read(tmp_path, server, **given)))
            waits.start()
            while not any("which writes the same tasks" in line for line in logged):
                waits.join(0.01)
                assert waits.is_alive(), logged
            held.go_on.set()
            theirs = json.loads(process.communicate(timeout=120)[0])
            waits.join(120)
    assert process.returncode == 0 and len(found) == 6
    assert [task.model_dump() for task in found] == theirs
    assert len(prompts(server)) == len(set(prompts(server))), "nothing was asked twice"
