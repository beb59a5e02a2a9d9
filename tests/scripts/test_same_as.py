"""`scripts/same_as`: each value that differs is found and named, and no module comes from another checkout."""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from same_as_parts.checkout import Checkout, RunError  # noqa: E402
from same_as_parts.command import compare_setting  # noqa: E402
from same_as_parts.compare import Difference, Results, find_differences, parse_results  # noqa: E402
from same_as_parts.reader import read_run  # noqa: E402
from same_as_parts.settings import NAMES, SETTINGS  # noqa: E402

COVERED = {
    "grpo", "sft", "dpo", "distillation", "gae", "async", "store", "serve", "process-rewards", "resume", "validation",
    "isolation-loop", "isolation-loops", "isolation-process", "isolation-sandbox",
}  # fmt: skip


def read(run: Path) -> Results:
    return parse_results("".join(json.dumps(entry) + "\n" for entry in read_run(run)))


def results(*entries: tuple[int, str, object]) -> Results:
    return parse_results("".join(json.dumps(entry) + "\n" for entry in entries))


def only_difference(before: Results, now: Results) -> Difference:
    (difference,) = find_differences(before, now)
    return difference


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder like a run's, without episodes."""
    weights = tmp_path / "run" / "checkpoints" / "step-2" / "model.safetensors"
    weights.parent.mkdir(parents=True)
    header = json.dumps({"head": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    weights.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 0.25, -1.0))
    rows = [
        {"step": step, "time": 10.0 * step, "seconds/step": 1.0, "judge": "a", "loss": 0.5, "grad_norm": 0.1 * step}
        for step in (1, 2)
    ]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "run"


def change_rows(run: Path, change: Callable[[list[dict]], object]) -> None:
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_equals_itself_but_for_times(run: Path):
    before = read(run)
    change_rows(run, lambda rows: [row.update({"time": 0.0, "seconds/step": 7.0}) for row in rows])
    assert len(before) == 5 and list(find_differences(before, read(run))) == []


def test_one_bit_of_a_weight_is_found(run: Path):
    before = read(run)
    path = run / "checkpoints" / "step-2" / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    difference = only_difference(before, read(run))
    assert (difference.step, difference.place) == (2, "model.safetensors head")


def test_the_first_metric_that_differs_is_named(run: Path):
    before = read(run)
    change_rows(run, lambda rows: rows[1].update(loss=0.5 + 1e-12))
    difference = only_difference(before, read(run))
    assert (difference.step, difference.place, difference.before) == (2, "loss", 0.5)
    assert list(find_differences(before, read(run), ["^loss$"])) == []


def test_a_metric_or_a_step_that_is_missing_is_found(run: Path):
    before = read(run)
    change_rows(run, lambda rows: (rows[0].pop("loss"), rows.pop()))
    found = [(each.step, each.place) for each in find_differences(before, read(run))]
    assert found == [(1, "loss"), (2, "loss"), (2, "grad_norm")]


def test_tokens_are_compared_one_by_one():
    tokens = "episode 0 (t, repeat 0): ids"
    difference = only_difference(results((1, tokens, [5, 6, 7])), results((1, tokens, [5, 9, 7])))
    assert (difference.place, difference.before, difference.now) == (f"{tokens}[1]", 6, 9)
    shorter = only_difference(results((1, tokens, [5, 6])), results((1, tokens, [5])))
    assert (shorter.before, shorter.now) == (2, 1)


def test_a_true_is_no_one_and_an_int_no_float():
    assert only_difference(results((1, "success", True)), results((1, "success", 1))).now == 1
    assert only_difference(results((1, "reward", 1)), results((1, "reward", 1.0))).before == 1


def checkout_of(folder: Path, name: str, others: list[Path]) -> Checkout:
    """A side whose code is a small package `ajet` of its own, with a plug-in and an entry point."""
    code = folder / name
    for package in ("ajet", "plugins/ajet_toy"):
        (code / package).mkdir(parents=True)
        (code / package / "__init__.py").write_text(f"WHERE = {name!r}\n")
    points = '[project.entry-points."ajet.plugins"]\ntoy = "ajet_toy:WHERE"\n'
    (code / "pyproject.toml").write_text(f'[project]\nname = "ajet"\nversion = "9.{len(name)}"\n{points}')
    return Checkout(name, code, folder / f"path-{name}", others)


BY_PATH = (
    "import importlib.util as u; s = u.spec_from_file_location('p', {}); s.loader.exec_module(u.module_from_spec(s))"
)
ENTRY_POINTS = """
from importlib.metadata import entry_points, version
import ajet
(point,) = entry_points(group="ajet.plugins")
print(ajet.WHERE, point.load(), version("ajet"))
"""


def test_code_entry_points_and_plugins_are_the_checkouts(tmp_path: Path):
    for name, version in (("before", "9.6"), ("now", "9.3")):
        side = checkout_of(tmp_path, name, [])
        assert side.run(["-c", ENTRY_POINTS], tmp_path).split() == [name, name, version]
        side.check_modules()


def test_a_module_of_another_checkout_is_refused(tmp_path: Path):
    other = checkout_of(tmp_path, "other", []).code
    side = checkout_of(tmp_path, "before", [other])
    plugin = other / "plugins" / "ajet_toy" / "__init__.py"
    by_path = BY_PATH.format(repr(str(plugin)))
    caught = f"import ajet\ntry:\n    {by_path}\nexcept Exception:\n    pass"
    forked = f"import ajet, os, sys\nif os.fork():\n    sys.exit(os.wait()[1] >> 8)\n{by_path}"
    for program in (caught, forked, f"import sys; sys.path.insert(0, {str(other)!r}); import ajet"):
        with pytest.raises(RunError, match="exit code 1"):
            side.run(["-c", program], tmp_path)
        with pytest.raises(RunError, match="another checkout"):
            side.check_modules()


def test_a_run_without_modules_of_ours_is_refused(tmp_path: Path):
    side = checkout_of(tmp_path, "before", [])
    side.run(["-c", "pass"], tmp_path)
    with pytest.raises(RunError):
        side.check_modules()


def test_a_setting_that_both_versions_refuse_needs_permission(tmp_path: Path):
    sides = [checkout_of(tmp_path, name, []) for name in ("before", "now")]
    for side in sides:
        (side.code / "ajet" / "__main__.py").write_text("raise SystemExit(2)")
    for allowed, other, equal in ((["grpo"], [], True), (["rloo"], ["^loss$"], False), ([], [], False)):
        args = argparse.Namespace(allow_missing=allowed, ignore=other)
        assert compare_setting("grpo", sides, tmp_path, args) is equal, allowed
    (sides[0].code / "ajet" / "__main__.py").write_text("import sys; sys.exit(1)")
    assert not compare_setting("grpo", sides, tmp_path, argparse.Namespace(allow_missing=["grpo"], ignore=[]))


def same_as(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "same_as"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def test_wrong_calls_end_with_two():
    for arguments in (("no-such-commit",), ("HEAD", "--only", "nothing"), ("HEAD", "--allow-missing", "nothing"), ()):
        done = same_as(*arguments)
        assert done.returncode == 2 and done.stderr, arguments


def test_settings_are_listed_with_what_they_cover():
    done = same_as("--list")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == len(NAMES) >= 19 and set(NAMES) >= COVERED
    assert all(
        line.split()[0] == name and SETTINGS[name].summary in line for name, line in zip(NAMES, lines, strict=True)
    )


@pytest.mark.extra_slow
def test_this_working_tree_trains_as_its_last_commit_did():
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("this is no git checkout")
    trees = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True).stdout
    done = same_as("HEAD", "--only", "grpo,store", timeout=900)
    assert done.returncode == 0 and done.stdout.count(" equal (") == 2, done.stdout + done.stderr
    after = subprocess.run(["git", "worktree", "list"], cwd=ROOT, capture_output=True, text=True).stdout
    assert "ajet-same-as" not in "".join(set(after.splitlines()) - set(trees.splitlines())), "its worktree stays"
