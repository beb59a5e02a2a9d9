"""The tutorial of verifiers trains to its end and learns: their package in an environment of its own, a process an
episode."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.record import EpisodeFiles
from ajet.schema.errors import UserError
from ajet_environments.venvs import prepare_python
from tests.support.ajet_process import ajet, metric_rows
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught

FOLDER = TUTORIALS / "example_verifiers"
PASSES = "I do not know."


@pytest.fixture
def installed() -> None:
    """Their package, where it can be had."""
    try:
        prepare_python(FOLDER / "requirements.txt")
    except UserError as problem:
        pytest.skip(f"verifiers could not be installed here: {problem.do}")


def test_every_sum_that_is_played_is_demonstrated() -> None:
    experiment = load_experiment(FOLDER / "small.yaml", backbone="local", overrides=["model.path=embedded:tiny-tools"])
    experiment.require_ready()
    played = experiment.config.verifiers
    numbers = range(played.config.largest + 1)
    assert played.train + played.validation == len(numbers) ** 2
    rows = resolve_reference("demonstrations.py->demonstrations", base=FOLDER)()
    shown: dict[str, list[str]] = {}
    for row in rows:
        asked, said = (message["content"] for message in row["messages"])
        shown.setdefault(asked, []).append(said)
    assert set(shown) == {f"What is {first} + {second}?" for first in numbers for second in numbers}
    for asked, answers in shown.items():
        first, second = asked.removeprefix("What is ").removesuffix("?").split(" + ")
        assert set(answers) == {str(int(first) + int(second)), PASSES} and answers.count(PASSES) > 100


@pytest.mark.extra_slow
@pytest.mark.timeout(2400)
def test_it_learns_to_answer(tmp_path: Path, installed: None) -> None:
    prints(FOLDER / "demonstrations.py", tmp_path / "demonstrations.jsonl")
    subprocess.run([sys.executable, str(FOLDER / "make_model.py"), "adder"], check=True, cwd=tmp_path, timeout=120)
    model = taught(FOLDER / "sft.yaml", tmp_path)
    held_out, rewards = learned(FOLDER / "small.yaml", tmp_path, "verifiers_small", model)
    assert held_out[-1] > held_out[0] + 0.3 and rewards[-1] > rewards[0] + 0.2, (held_out, rewards)


@pytest.mark.extra_slow
def test_it_trains_on_rewards_of_a_taskset(tmp_path: Path, installed: None) -> None:
    shutil.copytree(FOLDER, tmp_path / "tutorial")
    yaml = tmp_path / "tutorial" / "verifiers.yaml"
    done = ajet("--conf", str(yaml), "--backbone", "local", "trainer_common.threads=1", cwd=tmp_path, timeout=1200)
    assert done.returncode == 0, done.stdout
    run = tmp_path / "launcher_record" / "verifiers"
    rows = [row for row in metric_rows(run) if "train/reward" in row]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    episodes = [each for step in (1, 2, 3, 4) for each in EpisodeFiles(run / "episodes").read(step, "train")]
    assert len(episodes) == 4 * 2 * 4 and not [each.failure for each in episodes if each.failure]
    for each in episodes:
        assert each.reward in (0.0, 1.0) and each.calls and each.metrics["reward_right"] == each.reward
        assert all(call.response_ids.size for call in each.calls), "captured at our gateway, token by token"
    assert [row for row in metric_rows(run) if "validation/reward" in row], "and four tasks are held out"
    assert (run / "checkpoints").is_dir()
