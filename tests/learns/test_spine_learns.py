"""The whole way on a real tiny model: an agent with a tool, captured, judged, trained, saved, and better for it."""

import json

import pytest

from ajet.commands.summary import RunTally
from tests.support.ajet_process import ajet, metric_rows

pytestmark = pytest.mark.slow


def test_the_tool_agent_learns_to_use_its_tool(tmp_path):
    made = ajet("init", "tool", "--template", "tool", cwd=tmp_path)
    assert made.returncode == 0, made.stdout
    (yaml,) = (tmp_path / "tool").glob("*.yaml")
    steady = ["rollout.deterministic=true", "trainer_common.threads=1"]  # the order of replies changes nothing
    steps = ["trainer_common.total_training_steps=10", "trainer_common.test_freq=10"]  # 6 are enough
    settings = [*steady, *steps, "data.train_batch_size=8"]
    done = ajet("--conf", str(yaml), "--backbone", "local", *settings, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout

    (run,) = (path for path in (tmp_path / "launcher_record").iterdir() if path.is_dir())
    rows = metric_rows(run)
    held_out = [row["validation/reward"] for row in rows if "validation/reward" in row]
    assert held_out[0] < 0.3 and held_out[-1] > 0.9, (held_out, done.stdout)
    assert not json.loads((run / "status.json").read_text()).get("gamed"), "an honest run raises no alarm"
    tally = RunTally.from_rows(rows)
    assert (tally.skipped, tally.doubled, tally.failed) == (0, 0, 0)
    assert tally.describe_counts() in done.stdout
    assert (run / "metrics.png").stat().st_size > 1000
    assert {"resolved.yaml", "status.json", "metrics.jsonl", "episodes", "checkpoints", "logs"} <= {
        path.name for path in run.iterdir()
    }

    assert all(row["seconds/processor"] > 0 for row in rows if "tasks" in row)
    compared = json.loads(ajet("compare", run.name, "--json", cwd=tmp_path).stdout)["groups"][0]
    assert compared["held_out"] == held_out[-1] and compared["runs"][0]["processor"] > 1

    answer = ajet("chat", run.name, "--prompt", "What does the eel cost?", cwd=tmp_path)
    assert answer.returncode == 0 and "model:" in answer.stdout, answer.stdout

    played = ajet("chat", run.name, "--agent", "--prompt", "What does the eel cost?", cwd=tmp_path)
    assert played.returncode == 0 and "→ price(" in played.stdout and "tool:" in played.stdout, played.stdout

    again = ajet("--conf", str(run / "resolved.yaml"), "experiment_name=again", "--dry-run", cwd=tmp_path)
    assert again.returncode == 0, again.stdout
