"""`ajet runs`, `ajet episodes` and `ajet status`: what the viewer shows, in a terminal."""

import json
import os
import re
import signal
import time
from dataclasses import asdict

import pytest

from ajet.record.process_identity import ProcessIdentity
from tests.support.ajet_process import ajet
from tests.support.terminal import screen
from tests.support.viewer_fixtures import HOSTILE, write_run

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
    assert "There are no runs" in ajet("runs", "--exp-dir", str(tmp_path / "nothing"), cwd=tmp_path).stdout


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


def tell(run, **what):
    """What a run that this process is says of itself."""
    status = json.loads((run / "status.json").read_text()) | {"updated": time.time()}
    status["processes"] = [{**asdict(ProcessIdentity.of(os.getpid())), "role": "run"}]
    aside = run / "status.aside"
    aside.write_text(json.dumps(status | what))
    aside.rename(run / "status.json")


def test_who_looks_at_a_run_that_goes_on_can_stop_looking(tmp_path):
    run = write_run(tmp_path / "one", outcome=None)
    tell(run, step=3, depths={"leased": 5, "closed": 2, "given back": 3, "samplers": 4})
    with screen("status", "one", "--exp-dir", str(tmp_path), cwd=tmp_path, columns=50) as shown:
        shown.until("step 3 of 9")
        shown.until(r"1 process\b")
        shown.until("given back 3,\r\n         samplers 4")  # under its own column
        shown.process.send_signal(signal.SIGINT)
        assert shown.code() == 130, shown.said
    assert re.search(r'"step": 3\b', (run / "status.json").read_text())


def test_the_table_of_runs_keeps_its_columns_in_a_narrow_window(tmp_path):
    row = {"step": 0, "validation/tasks": 64, "validation/episodes": 64, "validation/scored": 64}
    for name in ("one", "a-name-that-is-long-for-a-window-like-this"):
        run = write_run(tmp_path / name)
        told = {**row, "validation/reward": 1.0, "validation/reward_error": 0.0}
        with (run / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps(told) + "\n")
        status = json.loads((run / "status.json").read_text())
        (run / "status.json").write_text(json.dumps({**status, "updated": time.time() - 59 * 60}))
    done = ajet("runs", "--exp-dir", str(tmp_path), cwd=tmp_path, COLUMNS="50")
    assert done.stdout.splitlines()[0].split() == ["run", "state", "step", "reward", "held", "out", "ago"]
    assert done.stdout.count("59 min") == 2 and max(map(len, done.stdout.splitlines())) <= 50, done.stdout


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
    assert "There are no runs" in ajet("runs", cwd=tmp_path).stdout
    assert list((tmp_path / "launcher_record").rglob("*")) == []
    other = tmp_path / "launcher_record" / "tool" / "debug" / "earlier"
    other.mkdir(parents=True)
    assert ajet(*command, cwd=tmp_path).returncode == 2
    assert list(other.parent.iterdir()) == [other], "what others left is theirs"
