"""`ajet runs` and `ajet episodes`: the viewer's tables in a terminal."""

import json
import time

import pytest

from tests.ajet_command import ajet
from tests.viewer_fixtures import HOSTILE, write_run

pytestmark = pytest.mark.slow


def test_runs_are_listed_with_state_step_reward_and_age(tmp_path):
    write_run(tmp_path / "one")
    write_run(tmp_path / "two", steps=1, outcome="failed")
    status = json.loads((tmp_path / "two" / "status.json").read_text())
    (tmp_path / "two" / "status.json").write_text(json.dumps({**status, "updated": time.time() - 7200}))
    done = ajet("runs", "--exp-dir", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    first, second = [line.split() for line in done.stdout.splitlines() if line.startswith(("one", "two"))]
    assert first[:4] == ["one", "finished", "3", "0.3"]
    assert second[:4] == ["two", "failed", "1", "0.1"] and second[-2:] == ["2", "h"]
    assert "No runs" in ajet("runs", "--exp-dir", str(tmp_path / "nothing"), cwd=tmp_path).stdout


def test_the_worst_episodes_come_first_and_obey_no_terminal(tmp_path):
    write_run(tmp_path / "one", said=HOSTILE)
    done = ajet("episodes", "one", "--exp-dir", str(tmp_path), "--worst", "2", "--step", "2..3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("reward 0 ") == 2 and "2 of 10 episodes" in done.stdout
    assert "<script>" in done.stdout and "\x1b" not in done.stdout and "\u202e" not in done.stdout
    best = ajet("episodes", "one", "--exp-dir", str(tmp_path), "--best", "1", cwd=tmp_path).stdout
    assert "reward 1 " in best
    missing = ajet("episodes", "nosuch", "--exp-dir", str(tmp_path), cwd=tmp_path)
    assert missing.returncode == 2 and "no episodes of a run named nosuch" in missing.stdout


def test_a_run_in_the_terminal(tmp_path):
    """Its curve and its last episodes; it obeys no model."""
    write_run(tmp_path / "one", said=HOSTILE)
    done = ajet("view", "one", "--exp-dir", str(tmp_path), "--terminal", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    head, _, legend, *rest = done.stdout.splitlines()
    assert head.startswith("one  finished  step 3 of 9") and legend == "training reward (smoothed)"
    assert sum("│" in line for line in rest) == 10 and any(line.split()[:2] == ["3", "What"] for line in rest)
    assert "<script>" in done.stdout and "\x1b" not in done.stdout and "\u202e" not in done.stdout


def test_one_of_a_thing_is_one(tmp_path):
    write_run(tmp_path / "one", steps=1)
    (lines,) = (tmp_path / "one" / "episodes").glob("step-1.jsonl")
    lines.write_text(lines.read_text().splitlines(keepends=True)[0])
    done = ajet("episodes", "one", "--exp-dir", str(tmp_path), cwd=tmp_path)
    assert "1 of 1 episode\n" in done.stdout, done.stdout


def test_a_mistake_before_the_first_episode_leaves_no_run_behind(tmp_path):
    made = ajet("init", "try", "--template", "tool", cwd=tmp_path)
    assert made.returncode == 0, made.stdout
    command = ["--conf", "try/tool.yaml", "model.path=/nowhere/at/all"]
    for _ in range(2):
        done = ajet(*command, cwd=tmp_path)
        assert done.returncode == 2 and "/nowhere/at/all" in done.stdout, done.stdout
    assert "No runs" in ajet("runs", cwd=tmp_path).stdout
    assert list((tmp_path / "launcher_record").rglob("*")) == []
    other = tmp_path / "launcher_record" / "tool" / "debug" / "earlier"
    other.mkdir(parents=True)
    assert ajet(*command, cwd=tmp_path).returncode == 2
    assert list(other.parent.iterdir()) == [other], "what others left is theirs"
