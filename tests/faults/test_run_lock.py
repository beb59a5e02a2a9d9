"""A run's folder is held by the kernel for as long as its process lives, whatever clocks, containers and forks do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.runs import LOCK_HOLDER, run_here, status_of_process

pytestmark = pytest.mark.slow

APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@contextmanager
def taking(folder: Path, *before: str, forks: bool = False) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """What a process that takes the lock says; it lives as long as the block."""
    command = [*before, sys.executable, "-c", LOCK_HOLDER, str(folder), *(["forks"] if forks else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


@pytest.fixture
def apart() -> tuple[str, ...]:
    if os.geteuid() != 0 or subprocess.run([*APART, "true"], capture_output=True).returncode != 0:
        pytest.skip("process namespaces are not allowed here")
    return APART


def test_a_second_container_of_the_same_host_name_does_not_take_a_live_runs_folder(
    tmp_path: Path, apart: tuple[str, ...]
) -> None:
    with taking(tmp_path / "demo", *apart) as (first, _), taking(tmp_path / "demo", *apart) as (second, _):
        assert (first, second) == ("got", "held")


def test_a_clock_that_was_set_does_not_free_a_live_runs_folder(tmp_path: Path) -> None:
    """Start times in seconds since the epoch move with the clock; what the file says of them does then not agree."""
    with taking(tmp_path / "demo") as (first, _):
        path = tmp_path / "demo" / "lock.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"started": content["started"] + 3600}))
        with taking(tmp_path / "demo") as (second, _):
            assert (first, second) == ("got", "held")


def test_a_forked_child_that_outlives_the_run_does_not_hold_its_folder(tmp_path: Path) -> None:
    with taking(tmp_path / "demo", forks=True) as (first, process):
        process.kill()
        process.wait()
        with taking(tmp_path / "demo") as (second, _):
            assert (first, second) == ("got", "got")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def status(project: Path, **more: object) -> Path:
    """The status of a run `demo` whose process is this one, but for `more`."""
    folder = project / "launcher_record" / "demo"
    folder.mkdir(parents=True)
    entry = {"pid": 1, "started": time.time(), "role": "run"}
    (folder / "status.json").write_text(json.dumps({"name": "demo", "host": "here", "processes": [entry], **more}))
    return folder


def stopping() -> tuple[int, str]:
    done = run_here("stop", "demo")
    return done.code, done.printed


@pytest.mark.parametrize("more", [{"host": "node7"}, {"host": "node7", "boot": "another"}])
def test_stop_says_of_a_run_on_another_host_that_it_is_there(project: Path, more: dict[str, str]) -> None:
    status(project, **more)
    code, said = stopping()
    assert code == 2 and "node7" in said and "not in progress" not in said


def test_stop_of_a_run_on_another_host_that_has_ended_is_no_error(
    project: Path,
) -> None:
    status(project, host="node7", outcome="finished", processes=[])
    code, said = stopping()
    assert code == 0 and "not in progress" in said


def test_stop_reads_a_damaged_status_as_one(project: Path) -> None:
    (status(project) / "status.json").write_text('{"half')
    code, said = stopping()
    assert code == 2 and "damaged" in said and "Traceback" not in said


@pytest.mark.parametrize("names", ["a|b|c|d|e|f|z", None])
def test_one_run_that_cannot_be_ended_keeps_nobody_from_ending_the_others(tmp_path: Path, names: str | None) -> None:
    for name in "abcdef":  # whichever a folder's list has first
        (tmp_path / name).mkdir()
        (tmp_path / name / "status.json").write_text('{"half')
    with subprocess.Popen(["sleep", "600"]) as lives, subprocess.Popen(["sleep", "600"]) as serves:
        for folder, process in (("z", lives), ("z/serve/20260101-000000", serves)):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "status.json").write_text(status_of_process(process.pid))
        try:
            which = ["--autokill"] if names is None else ["--kill", names]
            done = run_here(*which, "--exp-dir", tmp_path)
            assert done.code == 2 and "damaged" in done.printed
            assert lives.wait(10) != 0 and "z was stopped" in done.printed
            assert (serves.poll() is None) == (names is not None)
        finally:
            lives.kill()
            serves.kill()
