"""Temporary folders go with their maker; what one that was killed left goes with the next of its kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.record import held_folder
from ajet.record.held_folder import HeldFolder

MAKES = """
import os, sys, time
from ajet.record.held_folder import HeldFolder
made = HeldFolder("kind-", sys.argv[1])
(made.path / "big").write_text("left")
copy = os.fork()
if copy:
    print(copy, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def another_process() -> None:
    held_folder.remove_abandoned_folders.cache_clear()


def test_what_a_killed_maker_left_goes_with_the_next_of_its_kind_and_nothing_else_does(tmp_path: Path) -> None:
    place, kept = str(tmp_path), tmp_path / "kind-of-somebody-else"
    kept.mkdir()
    with subprocess.Popen([sys.executable, "-c", MAKES, place], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        copy = int(maker.stdout.readline())
        try:
            (left,) = (each for each in tmp_path.iterdir() if each != kept)
            other = HeldFolder("other-", place)
            mine = HeldFolder("kind-", place, mode=0o711)
            assert (left / "big").exists(), "its maker lives"
            maker.send_signal(signal.SIGKILL)
            maker.wait()
            held_folder.remove_abandoned_folders.cache_clear()
            third = HeldFolder("kind-", place)  # though a forked copy of it lives
        finally:
            maker.kill()
            os.kill(copy, signal.SIGKILL)
    assert not left.exists() and kept.exists()
    assert mine.path.stat().st_mode & 0o777 == 0o711 and other.path.exists()
    for each in (mine, other, third):
        each.remove()
        each.remove()
    assert [*tmp_path.iterdir()] == [kept]
