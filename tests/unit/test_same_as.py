"""`scripts/same_as`: one bit that differs is found and named; times and random names are no difference."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from same_as_parts.compare import Difference, differences, tensors  # noqa: E402
from same_as_parts.settings import NAMES  # noqa: E402

WEIGHTS = "checkpoints/step-2/model.safetensors"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A real run twice."""
    with tarfile.open(ROOT / "tests" / "upgrade" / "4e1e13d" / "local.tar.xz") as file:
        file.extractall(tmp_path)
    before = tmp_path / "project" / "launcher_record" / "local"
    shutil.copytree(before, tmp_path / "after")
    return before, tmp_path / "after"


def found(folders: tuple[Path, Path], *ignored: str) -> list[Difference]:
    return list(differences(*folders, ignored))


def test_a_run_is_the_same_as_itself(folders: tuple[Path, Path]):
    assert len(tensors(folders[0] / WEIGHTS)) > 5 and found(folders) == []


def test_one_bit_of_a_weight_is_found(folders: tuple[Path, Path]):
    path = folders[1] / WEIGHTS
    raw = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", raw[:8])
    about = json.loads(raw[8 : 8 + length])["model.embed_tokens.weight"]
    at = 8 + length + about["data_offsets"][0] + 4 * (3 * about["shape"][1] + 5)
    raw[at] ^= 1
    path.write_bytes(raw)
    (difference,) = found(folders)
    assert difference.file == WEIGHTS
    assert difference.place == "model.embed_tokens.weight[3, 5] and 0 more"
    assert difference.before != difference.after
    assert np.isclose(difference.before, difference.after, rtol=1e-6)


def test_one_bit_of_a_logprob_is_found(folders: tuple[Path, Path]):
    lines = folders[1] / "episodes" / "step-1.jsonl"
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    blob = lines.with_suffix(".bin").read_bytes()
    place = rows[-1]["blob"]
    raw = bytearray(zlib.decompress(blob[place["offset"] :]))
    start = rows[-1]["calls"][1]["logprobs"][0]
    raw[4 * (rows[-1]["arrays"]["ints"] + start + 2)] ^= 1
    packed = zlib.compress(bytes(raw))
    lines.with_suffix(".bin").write_bytes(blob[: place["offset"]] + packed)
    rows[-1]["blob"] = {**place, "length": len(packed), "crc32": zlib.crc32(packed)}
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (difference,) = found(folders)
    assert (difference.file, difference.place) == (
        "episodes/step-1.jsonl",
        f"{len(rows) - 1}/calls/1/logprobs[2] and 0 more",
    )


def changed(path: Path, change: Callable[[list[dict]], object]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_metrics_and_fields_of_episodes_are_found_and_can_be_set_aside(folders: tuple[Path, Path]):
    changed(folders[1] / "metrics.jsonl", lambda rows: rows[1].update(grad_norm=rows[1]["grad_norm"] + 1e-12))
    changed(folders[1] / "episodes" / "step-3.jsonl", lambda rows: rows[0].update(repeat=9, newly="here"))
    places = {(each.file, each.place) for each in found(folders)}
    assert places == {
        ("metrics.jsonl", "1/grad_norm"),
        ("episodes/step-3.jsonl", "0/repeat"),
        ("episodes/step-3.jsonl", "0/newly"),
    }
    assert {each.place for each in found(folders, "/newly$", "grad_norm")} == {"0/repeat"}


def test_what_is_missing_is_found(folders: tuple[Path, Path]):
    (folders[1] / "episodes" / "step-2.jsonl").unlink()
    changed(folders[1] / "metrics.jsonl", lambda rows: rows.pop())
    (folders[0] / "checkpoints" / "step-2" / "trainer" / "state.safetensors").unlink()
    assert {(each.file, each.place) for each in found(folders)} == {
        ("episodes/step-2.jsonl", "the file"),
        ("metrics.jsonl", "/length"),
        ("checkpoints/step-2/trainer/state.safetensors", "the file"),
    }


def test_times_and_random_names_are_no_difference(folders: tuple[Path, Path]):
    def other(rows: list[dict]) -> None:
        for row in rows:
            row.update({"time": 0.0, "seconds/step": 1.0, "uuid": "x", "run": "y", "started": 3.0})

    changed(folders[1] / "metrics.jsonl", other)
    changed(folders[1] / "episodes" / "step-1.jsonl", other)
    (folders[1] / "status.json").write_text("{}")
    assert found(folders) == []


def same_as(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "same_as"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def test_a_commit_that_is_none_and_a_setting_that_is_none_are_refused():
    done = same_as("no-such-commit")
    assert done.returncode == 2 and "there is no commit no-such-commit" in done.stderr
    done = same_as("HEAD", "--only", "nothing")
    assert done.returncode == 2 and all(name in done.stderr for name in NAMES)


@pytest.mark.extra_slow
def test_this_working_tree_trains_as_its_last_commit_did():
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("this is no git checkout")
    trees = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True).stdout
    done = same_as("HEAD", "--only", "grpo", timeout=600)
    assert done.returncode == 0 and "grpo: same" in done.stdout, done.stdout + done.stderr
    after = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True).stdout
    assert "ajet-same-as" not in "".join(set(after.splitlines()) - set(trees.splitlines())), "its worktree stays"
