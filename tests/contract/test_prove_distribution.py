"""`ajet prove` in bfloat16: an honest run passes; what moves the distribution of its log-probabilities is found.

One trained run, whose record is copied and changed; the command line is asked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.record import EpisodeFiles
from ajet.schema.call import VersionRun
from ajet.schema.episode import Episode
from tests.support.gateways import timelines
from tests.support.runs import prove_run, run_here

pytestmark = pytest.mark.slow
SETTINGS = [
    "model.dtype=bfloat16", "trainer_common.total_training_steps=2", "trainer_common.save_freq=1",
    "trainer_common.val_before_train=false", "trainer_common.test_freq=100", "data.train_batch_size=4",
    "rollout.num_repeat=4", "trainer_common.threads=1", "trainer_common.optim.lr=1e-3",
    "trainer_common.algorithm.dynamic_sampling=false",
]  # fmt: skip


def command(*words: str) -> int:
    """The exit code of a command in this process; what it printed is printed."""
    done = run_here(*words)
    print(done.printed)
    return done.code


def trained(folder: Path, name: str, *more: str) -> Path:
    """A run of the tool template."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        if not (folder / "tool").exists():
            assert command("init", "tool", "--template", "tool") == 0
        yaml = next((folder / "tool").glob("*.yaml"))
        assert command("--conf", str(yaml), "--backbone", "local", f"experiment_name={name}", *SETTINGS, *more) == 0
    finally:
        os.chdir(before)
    return folder / "launcher_record" / name


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("spread")


@pytest.fixture(scope="module")
def run(project: Path) -> Path:
    """Two steps in bfloat16 at temperature 1, with every version's weights kept."""
    return trained(project, "whole")


@pytest.fixture(scope="module")
def cut(project: Path) -> Path:
    """One step with top_p and top_k."""
    return trained(project, "cut", "rollout.top_p=0.8", "rollout.top_k=40", "trainer_common.total_training_steps=1")


def spoiled(run: Path, folder: Path, change: Callable[[list[Episode]], None], step: int = 2) -> Path:
    """A copy of a run in which the episodes of one step were changed."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("logs"))
    files = EpisodeFiles(folder / "episodes")
    recorded = files.recorded(step)
    episodes = [episode for episode, _ in recorded]
    change(episodes)
    for episode in episodes:
        episode.timelines[:], _ = timelines(episode.calls)
    for path in (files.path(step), files.path(step).with_suffix(".bin")):
        path.unlink()
    files.write(step, "train", episodes, {episode.uuid: outcome for episode, outcome in recorded})
    return folder


def proven(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `ajet prove`, and what it says."""
    capsys.readouterr()
    said = prove_run(folder, *more)
    return 0 if said["ok"] else 1, said


def shifted(by: float) -> Callable[[list[Episode]], None]:
    def change(episodes: list[Episode]) -> None:
        for call in (call for episode in episodes for call in episode.calls):
            call.logprobs, call.logprobs_unit = call.logprobs - by, call.logprobs_unit - by

    return change


def old_versions(episodes: list[Episode]) -> None:
    for call in (call for episode in episodes for call in episode.calls):
        call.versions = (VersionRun(0, 0, 0),)


def one_raised(episodes: list[Episode]) -> None:
    call = episodes[0].calls[0]
    call.logprobs[int(np.argmin(call.logprobs))] += 0.5


def all_zero(episodes: list[Episode]) -> None:
    for call in (call for episode in episodes for call in episode.calls):
        call.logprobs = np.zeros_like(call.logprobs)


def first_version(low: int, high: int, *, logprobs: float | None = None) -> Callable[[list[Episode]], None]:
    def change(episodes: list[Episode]) -> None:
        for index, call in enumerate(episodes[0].calls):
            values = {} if logprobs is None else {"logprobs": np.full_like(call.logprobs, logprobs)}
            units = {} if logprobs is None else {"logprobs_unit": np.full_like(call.logprobs, logprobs)}
            episodes[0].calls[index] = replace(call, versions=(VersionRun(0, low, high),), **values, **units)

    return change


def test_an_honest_run_is_proven(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = proven(run, capsys)
    assert code == 0 and said["ok"] and not said["unproven"], said
    assert said["computed_in"] == "bfloat16 on cpu" and sorted(said["weights"]) == ["0", "1"]
    assert {(each["step"], each["version"]) for each in said["spreads"]} == {(1, 0), (2, 1)}
    assert all(each["tokens"] > 50 and each["problem"] is None for each in said["spreads"])
    assert command("prove", str(run), "--at-most", "3") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "not proven: their episodes were left out" in text and "Proven: no wrong token" not in text
    assert (
        "Not covered by a proof: what judges and other models answered, and tools whose uses were not recorded;" in text
    )


@pytest.mark.parametrize(
    "change, what",
    [
        (shifted(0.05), "distribution"),
        (shifted(0.3), "distribution"),
        (shifted(1.0), "distribution"),
        (old_versions, "distribution"),
        (one_raised, "the log-probability sampled from is not the one at temperature 1"),
        (all_zero, "the log-probability sampled from is not the one at temperature 1"),
        (first_version(0, 2, logprobs=-9.0), "its policy version was not there yet"),
        (first_version(7, 7, logprobs=-9.0), "its policy version was not there yet"),
    ],
    ids=["0.05", "0.3", "1.0", "stale", "one-raised", "all-zero", "range", "future"],
)
def test_what_was_changed_is_found(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[list[Episode]], None], what: str
) -> None:
    code, said = proven(spoiled(run, tmp_path / "whole", change), capsys, "--step", "2")
    assert code == 1 and not said["ok"], said["spreads"]
    found = [wrong["what"] for wrong in said["wrong"]] + ["distribution" for each in said["spreads"] if each["problem"]]
    assert any(each.startswith(what) for each in found), found


def test_a_range_of_versions_is_counted_and_not_called_proven(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = spoiled(run, tmp_path / "whole", first_version(0, 1, logprobs=-9.0))
    code, said = proven(folder, capsys, "--step", "2")
    assert code == 0 and said["unproven"]["version range"] > 0, said["unproven"]
    assert command("prove", str(folder), "--step", "2") == 0
    text = capsys.readouterr().out
    assert "a range of policy versions" in text and "Proven:" not in text


def test_a_version_without_a_checkpoint_is_counted_and_not_called_proven(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = spoiled(run, tmp_path / "whole", shifted(0.0))
    shutil.rmtree(folder / "checkpoints" / "step-1")
    code, said = proven(folder, capsys)
    assert code == 0 and said["unproven"] == {"no checkpoint": sum(e["sampled"] for e in said["plays"][1:])}
    assert command("prove", str(folder)) == 0
    text = capsys.readouterr().out
    assert "no checkpoint has the weights" in text and "Proven:" not in text


def test_what_was_drawn_with_top_p_and_top_k_is_held(
    cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = proven(cut, capsys)
    assert code == 0 and not said["unproven"], said
    assert {each["which"] for each in said["spreads"]} == {"at temperature 1", "as sampled"}

    def as_if_whole(episodes: list[Episode]) -> None:
        for call in (call for episode in episodes for call in episode.calls):
            call.logprobs = call.logprobs_unit.copy()

    code, said = proven(spoiled(cut, tmp_path / "cut", as_if_whole, step=1), capsys)
    assert code == 1 and any(each["problem"] and each["which"] == "as sampled" for each in said["spreads"]), said


@pytest.mark.extra_slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_honest_runs_of_other_seeds(project: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = proven(trained(project, f"seed-{seed}", f"seed={seed}"), capsys)
    assert code == 0 and not said["unproven"], said["spreads"]
