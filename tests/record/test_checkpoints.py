"""Checkpoints: which are kept, which is best, what counts as whole."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ajet.commands.export import export
from ajet.record.checkpoint import digest_state, read_checkpoint, require_sound
from ajet.record.checkpoints import Checkpoints
from ajet.record.held_out import Measurement
from ajet.schema.errors import UserError


def write(content: bytes = b"weights") -> object:
    def into(folder: Path) -> None:
        assert list(folder.iterdir()) == []
        (folder / "model.safetensors").write_bytes(content)
        (folder / "deep").mkdir()
        (folder / "deep" / "optimizer.pt").write_bytes(content * 2)

    return into


def measured(reward: float) -> Measurement:
    return Measurement({task: (reward,) for task in "abcdefgh"})


def steps(checkpoints: Checkpoints) -> list[int]:
    return [checkpoint.step for checkpoint in checkpoints.all()]


def test_a_checkpoint_comes_back_with_its_state(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.latest() is None and checkpoints.best() is None
    path = checkpoints.save(4, write(), {"frontier": {"next": 12, "open": [3]}}, measured=measured(0.5))
    latest = checkpoints.latest()
    assert latest is not None and latest.path == path == tmp_path / "checkpoints" / "step-4"
    assert (latest.step, latest.score, latest.state) == (4, 0.5, {"frontier": {"next": 12, "open": [3]}})
    assert (path / "deep" / "optimizer.pt").read_bytes() == b"weights" * 2


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, score in enumerate([0.1, 0.9, 0.2, None, 0.3, 0.4]):
        checkpoints.save(step, write(), {}, measured=None if score is None else measured(score))
    assert steps(checkpoints) == [1, 4, 5]
    best = checkpoints.best()
    assert best is not None and best.step == 1
    assert sorted(os.listdir(tmp_path)) == ["step-1", "step-4", "step-5"]


def test_without_keep_best_only_the_newest_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best=False)
    for step, score in enumerate([0.9, 0.1]):
        checkpoints.save(step, write(), {}, measured=measured(score))
    assert steps(checkpoints) == [1]


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=5)
    for step in (9, 10):
        checkpoints.save(step, write(), {})
    latest = checkpoints.latest()
    assert latest is not None and latest.step == 10


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, write(b"old"), {"n": 1})
    checkpoints.save(1, write(b"new"), {"n": 2})
    latest = checkpoints.latest()
    assert latest is not None and latest.state == {"n": 2}
    assert (latest.path / "model.safetensors").read_bytes() == b"new" and os.listdir(tmp_path) == ["step-1"]


def test_a_writer_that_raises_leaves_the_earlier_ones_and_nothing_of_its_own(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, write(), {})

    def broken(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        checkpoints.save(2, broken, {})
    assert os.listdir(tmp_path) == ["step-1"]


@pytest.mark.parametrize("damage", ["state.json", "model.safetensors", "truncate", "garbage"])
def test_a_folder_that_is_not_whole_is_no_checkpoint(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, write(), {})
    path = checkpoints.save(2, write(), {})
    if damage == "truncate":
        os.truncate(path / "deep" / "optimizer.pt", 3)
    elif damage == "garbage":
        (path / "state.json").write_text(json.dumps([1]))
    else:
        (path / damage).unlink()
    assert read_checkpoint(path) is None and steps(checkpoints) == [1]


def naming(file: str) -> str:
    """A `state.json` that names a file, with its own digest."""
    content = {"step": 1, "files": {file: 0}, "digests": {file: ""}, "score": None, "state": {}}
    return json.dumps({**content, "digest": digest_state(content)})


@pytest.mark.parametrize(
    ("state", "refused"),
    [
        (naming("/dev/zero"), "/dev/zero"),
        (naming("../../x"), "../../x"),
        ('{"step": 1, "files": {}, "score": null, "state": {}}', "state.json is damaged"),
        ('{"step": 1, "digests": {}}', "state.json is damaged"),
        ("{", "state.json is damaged"),
        ('{"step": 1, "epoch": 2}', None),
    ],
)
def test_a_state_that_cannot_be_ours_as_written_is_refused_and_others_programs_is_let_be(
    tmp_path: Path, state: str, refused: str | None
) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "state.json").write_text(state)
    if refused is None:
        require_sound(tmp_path / "step-1")
        return
    with pytest.raises(UserError, match=re.escape(refused)):
        require_sound(tmp_path / "step-1")


@pytest.mark.parametrize("renamed", [False, True])
def test_clean_gives_a_half_replaced_checkpoint_its_name_back(tmp_path: Path, renamed: bool) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(1, write(b"old"), {})
    os.replace(path, tmp_path / ".step-1.replaced")
    if renamed:
        checkpoints_new = Checkpoints(tmp_path)
        checkpoints_new.save(1, write(b"new"), {})
        assert (path / "model.safetensors").read_bytes() == b"new"
    (tmp_path / ".step-2.partial").mkdir()
    (tmp_path / ".step-0.pruned").mkdir()
    checkpoints.clean()
    assert os.listdir(tmp_path) == ["step-1"]
    assert (path / "model.safetensors").read_bytes() == (b"new" if renamed else b"old")


def test_a_path_names_a_checkpoint_a_run_or_its_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    first = checkpoints.save(1, write(), {})
    checkpoints.save(2, write(), {})
    assert checkpoints.at(first).step == 1
    assert checkpoints.at(tmp_path / "run").step == checkpoints.at(tmp_path / "run" / "checkpoints").step == 2
    with pytest.raises(UserError, match="no complete checkpoint"):
        checkpoints.at(tmp_path / "elsewhere")


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_weights_get_the_mode_of_umask(tmp_path: Path, umask: int) -> None:
    """safetensors writes 0600 whatever the umask is; also what an earlier save left so is exported readable."""

    def into(folder: Path) -> None:
        (folder / "adapter").mkdir()
        (folder / "trainer").mkdir()
        for name in ("model", "adapter/adapter_model", "trainer/state"):
            save_file({"w": torch.zeros(1)}, folder / f"{name}.safetensors")

    before = os.umask(umask)
    try:
        (tmp_path / "run.json").write_text("{}")
        saved = Checkpoints(tmp_path / "checkpoints").save(1, into, {})
        (saved / "model.safetensors").chmod(0o600)
        exported = export(str(tmp_path), tmp_path.parent)
    finally:
        os.umask(before)
    (saved / "model.safetensors").chmod(0o666 & ~umask)
    files = [path for folder in (saved, exported) for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {oct(0o666 & ~umask)}
