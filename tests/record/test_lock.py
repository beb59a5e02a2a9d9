"""What one process makes while others wait: who waits is told for whom, and a holder that is killed holds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ajet.record import lock as run_lock
from ajet.record.lock import alone
from ajet.schema.errors import UserError

HOLDS = """
import os, sys, time
from pathlib import Path
from ajet.record.lock import alone
with alone(Path(sys.argv[1]), "makes it"):
    copy = os.fork()
    if copy:
        print(copy, flush=True)
    time.sleep(600)
"""


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """By another process, which lives at most as long as the block; a forked copy of it lives as long as that."""
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(path)], stdout=subprocess.PIPE, text=True) as process:
        copy = 0
        try:
            assert process.stdout is not None
            copy = int(process.stdout.readline())
            yield process
        finally:
            process.kill()
            if copy:
                os.kill(copy, signal.SIGKILL)


def test_who_waits_is_told_for_whom_until_the_holder_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever forked copies it leaves."""
    monkeypatch.setattr(run_lock, "SAY_S", 0.05)
    monkeypatch.setattr(run_lock, "AGAIN_S", 0.05)
    path, said = tmp_path / "new" / "x.lock", list[str]()
    with held(path) as process:
        too_long = "makes it, and ajet has waited longer than 0 s"
        with pytest.raises(UserError, match=too_long) as late, alone(path, "makes it", at_most=0.01):
            raise AssertionError("two at once")
        assert f"Process {process.pid} on " in late.value.what

        def say(text: str) -> None:
            said.append(text)
            if len(said) == 2:
                process.send_signal(signal.SIGKILL)

        with alone(path, "makes it", say=say):
            assert process.wait(60) == -signal.SIGKILL
    assert len(said) >= 2 and all(f"waiting for process {process.pid} on " in each for each in said[:2])
    assert "which makes it" in said[0] and str(path) in said[0]
    with alone(path, "makes it", at_most=0.0):
        assert str(os.getpid()) in path.read_text()
    assert path.read_text() == "", "nobody is named who no longer holds it"


def test_threads_take_turns(tmp_path: Path) -> None:
    inside, most, lock = 0, 0, tmp_path / "x.lock"

    def takes() -> None:
        nonlocal inside, most
        with alone(lock, "counts"):
            inside += 1
            time.sleep(0.001)
            most = max(most, inside)
            inside -= 1

    threads = [threading.Thread(target=takes) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


@pytest.mark.parametrize("parent", ["a file", "a folder of somebody else's"])
def test_a_folder_that_cannot_be_written_is_one_screen(tmp_path: Path, parent: str) -> None:
    if parent == "a file":
        (tmp_path / "x").write_text("")
    elif os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    else:
        (tmp_path / "x").mkdir(mode=0o500)
    with (
        pytest.raises(UserError, match="cannot write to the folder") as refused,
        alone(tmp_path / "x" / "y.lock", "makes it"),
    ):
        raise AssertionError("nothing holds it")
    assert refused.value.do == "give this user permission to write to the folder"
