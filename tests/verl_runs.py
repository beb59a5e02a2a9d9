"""Launches on verl, as a person makes them, and what of them lives."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.ajet_command import ajet, metric_rows, start

TOOL = ["--backbone", "verl", "--with-ray", "trainer_common.save_freq=2", "trainer_common.test_freq=-1"]


def skip_without_verl() -> None:
    if find_spec("verl") is None or find_spec("vllm") is None:
        pytest.skip('verl and vLLM are not installed: pip install "ajet[verl]"')


def tool_project(folder: Path) -> Path:
    """The project that `ajet init --template tool` writes; answers its YAML."""
    made = ajet("init", "tool", "--template", "tool", cwd=folder)
    assert made.returncode == 0, made.stdout
    return next((folder / "tool").glob("*.yaml"))


class Life:
    """One launch of a run."""

    def __init__(self, yaml: Path, name: str, *settings: str) -> None:
        self.folder = yaml.parent.parent
        self.run = self.folder / "launcher_record" / name
        self.log = self.folder / f"{name}.txt"
        arguments = ["--conf", str(yaml), *TOOL, f"experiment_name={name}", *settings]
        self.process: subprocess.Popen[str] = start(*arguments, cwd=self.folder, log=self.log)

    def rows(self) -> list[dict]:
        """Its training steps so far, those of earlier launches too."""
        return [row for row in metric_rows(self.run) if "tasks" in row]

    def status(self) -> dict:
        return json.loads((self.run / "status.json").read_text())

    def wait_for_step(self, step: int, timeout: float = 400) -> None:
        self.wait(lambda: any(row["step"] >= step for row in self.rows()), f"step {step}", timeout)

    def wait(self, come: Callable[[], bool], what: str, timeout: float = 400) -> None:
        end = time.monotonic() + timeout
        while not come():
            assert self.process.poll() is None, f"it ended before {what}:\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < end, f"no {what} within {timeout} s:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.5)

    def processes(self, role: str = "") -> list[psutil.Process]:
        """Those of the run that live, by what it records of them."""
        found = []
        for entry in self.status()["processes"]:
            try:
                process = psutil.Process(entry["pid"])
                if abs(process.create_time() - entry["started"]) < 1 and role in entry["role"]:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def end(self) -> None:
        """Whatever happened, nothing of it stays."""
        if self.process.poll() is None:
            self.process.kill()
        for process in self.processes():
            process.kill()


def all_gone(processes: list[psutil.Process], timeout: float = 90) -> list[str]:
    """The names of those that still live after so many seconds."""
    _, alive = psutil.wait_procs(processes, timeout=timeout)
    return [process.name() for process in alive if process.status() != psutil.STATUS_ZOMBIE]
