"""Weights of a trainer elsewhere: what is sampled with is what it wrote, as a whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ajet.engine.saved_tensors import open_saved_tensors
from ajet.record.checkpoint import STATE
from ajet.record.checkpoints import Checkpoints
from ajet.schema.errors import UserError

WEIGHTS = {"a": torch.arange(64.0), "b": torch.ones(2, 3)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Checkpoints(tmp_path).save(1, lambda folder: save_file(WEIGHTS, folder / "model.safetensors"), {})


def taken(folder: Path) -> dict[str, torch.Tensor]:
    with open_saved_tensors(folder, {"a": (64,)}) as tensors:
        return dict(tensors)


def test_what_was_written_is_taken(checkpoint: Path) -> None:
    assert torch.equal(taken(checkpoint)["a"], WEIGHTS["a"])


def test_other_bytes_of_the_right_size_are_refused(checkpoint: Path) -> None:
    """One bit, in a number that is as good as any other."""
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert load_file(path).keys() == WEIGHTS.keys(), "by itself it is a sound file"
    with pytest.raises(UserError, match=r"damaged: model\.safetensors"):
        taken(checkpoint)


def test_a_copy_that_is_still_being_made_is_not_there_yet(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "step-1"
    shutil.copytree(checkpoint, copy)
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileNotFoundError):
        taken(copy)
    (copy / "model.safetensors").write_bytes(whole)
    (copy / STATE).unlink()
    with pytest.raises(FileNotFoundError, match="state.json"):
        taken(copy)


def test_a_model_that_is_no_checkpoint_has_no_digests(checkpoint: Path, tmp_path: Path) -> None:
    plain = tmp_path / "model"
    plain.mkdir()
    shutil.copy(checkpoint / "model.safetensors", plain)
    assert torch.equal(taken(plain)["a"], WEIGHTS["a"])
