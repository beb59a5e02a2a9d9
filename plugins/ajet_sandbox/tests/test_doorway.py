"""A sweep of doors is not stopped by sockets that nobody accepts."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

import pytest

from ajet_sandbox.doorway import remove_dead_doors


def _fill_backlog(path: Path) -> list[socket.socket]:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(0)
    guests = [listening]
    for _ in range(8):
        guests.append(socket.socket(socket.AF_UNIX))
        guests[-1].setblocking(False)
        guests[-1].connect_ex(str(path))
    return guests


@pytest.mark.parametrize("owner", [os.geteuid(), 65534])
def test_sweep_passes_sockets_with_full_backlog(monkeypatch: pytest.MonkeyPatch, owner: int) -> None:
    if owner != os.geteuid() and os.geteuid() != 0:
        pytest.skip("only root makes another user's folder")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        folder, left = Path(place, "door-x"), Path(place, "door-y")
        folder.mkdir()
        left.mkdir()
        sockets = _fill_backlog(folder / "gateway")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(left / "gateway"))
        os.chown(folder, owner, -1)
        begun = time.monotonic()
        remove_dead_doors("door-", "gateway")
        assert time.monotonic() - begun < 5
        assert folder.exists() and not left.exists()
        for each in sockets:
            each.close()
