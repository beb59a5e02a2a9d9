"""Launches on verl, as a person makes them, and what of them lives."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from ajet.schema.episode import Episode, Outcome
from ajet_ray.cluster.leftovers import RANDOM
from ajet_testing.left_behind import mapped
from tests.support.ajet_process import ajet, environment, metric_rows, start

TOOL = ["--backbone", "verl", "trainer_common.save_freq=2", "trainer_common.test_freq=-1"]

RAY_KEY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""Ray lets nobody in who does not know the cluster's token."""


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

    def __init__(self, yaml: Path, name: str, *settings: str, cluster: str = "") -> None:
        """`cluster`: the address of one to join; without it the run has one of its own."""
        self.folder = yaml.parent.parent
        self.run = self.folder / "launcher_record" / name
        self.log = self.folder / f"{name}.txt"
        ray = "--with-ray-cluster" if cluster else "--with-ray"
        arguments = ["--conf", str(yaml), *TOOL, ray, f"experiment_name={name}", *settings]
        where = {"RAY_ADDRESS": cluster, **RAY_KEY} if cluster else {}
        where["RAY_worker_niceness"] = "0"  # else the tests beside it have the machine to themselves
        self.process = start(*arguments, cwd=self.folder, log=self.log, fresh=True, **where)

    def rows(self) -> list[dict]:
        """Its training steps so far, those of earlier launches too."""
        return [row for row in metric_rows(self.run) if "tasks" in row]

    def status(self) -> dict:
        return json.loads((self.run / "status.json").read_text())

    def wait_for_step(self, step: int, timeout: float = 900) -> None:
        self.wait(lambda: any(row["step"] >= step for row in self.rows()), f"step {step}", timeout)

    def wait(self, come: Callable[[], bool], what: str, timeout: float = 900) -> None:
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


@contextmanager
def ray_cluster(log: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A Ray head of its own with one slot for a GPU, as an operator would start it: its address, and its process. What
    the runs on it leave is the operator's to remove."""
    memory = Path("/dev/shm")
    before, folder = set(memory.iterdir()), tempfile.mkdtemp(prefix="v")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0"]
    command += ["--num-cpus=16", "--num-gpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    with log.open("w") as out:
        more = {"stdout": out, "stderr": subprocess.STDOUT, "start_new_session": True}
        head = psutil.Popen(command, env=environment(TMPDIR=folder, **RAY_KEY), **more)
    try:
        end = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert head.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.5)
        told = re.search(r"--address='(\S+?:\d+)'", log.read_text())
        assert told, log.read_text()
        yield told[1], head
    finally:
        processes = [*head.children(recursive=True), head]
        head.terminate()
        psutil.wait_procs(processes, timeout=60)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
        for path in set(memory.iterdir()) - before:
            if path.name.startswith(RANDOM) and not mapped(str(path)):
                path.unlink(missing_ok=True)


def accounted(recorded: Iterable[tuple[Episode, Outcome]]) -> int:
    """Tokens that a step trained, and those that it says it did not."""
    trained = untrained = 0
    for episode, outcome in recorded:
        untrained += episode.untrained_with(outcome).total()
        trained += sum(line.sampled for line in episode.timelines) if outcome.step is not None else 0
    return trained + untrained


def remains(folder: Path, timeout: float = 30) -> list[str]:
    """What lies in a folder after so many seconds that is to be gone before; [] once it is."""
    end = time.monotonic() + timeout
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.2)
    return [str(path) for path in folder.rglob("*")]


def all_gone(processes: list[psutil.Process], timeout: float = 90) -> list[str]:
    """The names of those that still live after so many seconds."""
    _, alive = psutil.wait_procs(processes, timeout=timeout)
    return [process.name() for process in alive if process.status() != psutil.STATUS_ZOMBIE]
