"""A checkpoint that is interrupted at any byte is never taken for a whole one, and costs no earlier one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from ajet.record import Checkpoint, Checkpoints
from ajet.schema.errors import UserError
from tests.support.runs import Measurement

pytestmark = pytest.mark.slow


def fill(step: int, folder: Path) -> None:
    """The files of a checkpoint, a little at a time."""
    for name in ("model.safetensors", "optimizer.pt"):
        with (folder / name).open("wb") as file:
            for _ in range(64):
                file.write(bytes([step % 256]) * 8192)
                file.flush()


BEST = Measurement({"a": (1.0,)})


def write_for_ever(folder: Path, step: int, told: Connection) -> None:
    """Saves every step twice and tells each that is saved; a process of its own, which is killed."""
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.clean()
    told.send(0)
    while True:
        for _ in range(2):
            checkpoints.save(step, partial(fill, step), {"step": step}, measured=BEST if step == 1 else None)
        told.send(step)
        step += 1


def killed_after(seconds: float, folder: Path, step: int) -> list[int]:
    """The steps whose save had returned when the writer was killed so long after it was ready."""
    ours, theirs = Pipe(duplex=False)
    writer = get_context("fork").Process(target=write_for_ever, args=(folder, step, theirs))
    writer.start()
    theirs.close()
    said = []
    with ours:
        assert ours.recv() == 0
        time.sleep(seconds)  # the moment is what is drawn
        writer.kill()
        with suppress(EOFError):
            while True:
                said.append(ours.recv())
    writer.join()
    return said


def assert_whole(checkpoint: Checkpoint) -> None:
    for name in ("model.safetensors", "optimizer.pt"):
        assert (checkpoint.path / name).read_bytes() == bytes([checkpoint.step % 256]) * 8192 * 64
    assert checkpoint.state == {"step": checkpoint.step}


def test_kill_at_random_moments_never_loses_or_tears_a_checkpoint(tmp_path: Path) -> None:
    draw = random.Random(7)
    kills = reached = torn = 0
    while kills < 12 or reached <= 2 or torn <= 2:
        assert kills < 250, "the kills never met a save half-way"
        kills += 1
        said = killed_after(draw.uniform(0, 0.05) * (1 + kills // 25), tmp_path, reached + 1)
        torn += any(tmp_path.glob(".step-*"))
        for checkpoint in Checkpoints(tmp_path).all():
            assert_whole(checkpoint)
        checkpoints = Checkpoints(tmp_path)
        checkpoints.clean()
        whole = checkpoints.all()
        for checkpoint in whole:
            assert_whole(checkpoint)
        latest = max((checkpoint.step for checkpoint in whole), default=0)
        assert latest >= max(said, default=reached), "a checkpoint that save() had returned from is gone"
        assert latest >= reached
        reached = latest
        best = checkpoints.best()
        assert reached == 0 or (best is not None and best.step == 1), "the best one was pruned"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_clearly_and_keeps_the_earlier_checkpoint(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk / "checkpoints")
    checkpoints.save(1, lambda folder: write_bytes(folder, 300), {"step": 1})
    with pytest.raises(UserError) as error:
        checkpoints.save(2, lambda folder: write_bytes(folder, 2000), {"step": 2})
    assert "disk is full" in error.value.what and "last complete checkpoint is of step 1" in error.value.what
    assert os.listdir(small_disk / "checkpoints") == ["step-1"]
    checkpoints.save(2, lambda folder: write_bytes(folder, 300), {"step": 2})
    assert [checkpoint.step for checkpoint in checkpoints.all()] == [1, 2]


def test_a_full_disk_is_recognised_behind_a_librarys_own_error(small_disk: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"weight": torch.zeros(600_000)}
    checkpoints = Checkpoints(small_disk / "checkpoints")
    for save in (
        lambda folder: safetensors.save_file(tensors, folder / "model.safetensors"),
        lambda folder: torch.save(tensors, folder / "optimizer.pt"),
    ):
        with pytest.raises(UserError, match="disk is full"):
            checkpoints.save(1, save, {})
    assert os.listdir(small_disk / "checkpoints") == []


def test_a_limit_on_the_size_of_files_leaves_no_checkpoint_in_part(tmp_path: Path) -> None:
    """Runs in a child, since the limit stays with its process."""
    script = """
import resource, sys
from pathlib import Path
from ajet.record import Checkpoints
from ajet.schema.errors import UserError
from tests.support.runs import Measurement
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    Checkpoints(Path(sys.argv[1])).save(1, lambda f: (f / "model").write_bytes(b"x" * 200_000), {})
except UserError as error:
    print(error.what)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "reached the limit on file sizes" in done.stdout and os.listdir(tmp_path) == []


def write_bytes(folder: Path, kib: int) -> None:
    (folder / "model.safetensors").write_bytes(b"x" * 1024 * kib)
