"""An agent that fails where it would be wrong, and what a run then says of itself: screen, record, table."""

import json

import pytest

from tests.support.runs import ajet, metric_rows

pytestmark = pytest.mark.slow


@pytest.mark.extra_slow
@pytest.mark.parametrize("paid", [False, True])
def test_failing_where_it_is_wrong_pays_nothing(tmp_path, paid):
    """`paid`: with a reward for what the policy did to fail, in training and held out."""
    assert ajet("init", "tool", "--template", "tool", cwd=tmp_path).returncode == 0
    (workflow,) = (tmp_path / "tool").glob("*.py")
    text = workflow.read_text()
    assert "return WorkflowOutput(" in text
    raises = "right = right or task.task_id == 'validation-0'  # a run of which every attempt fails is refused\n"
    raises += "        if not right:\n            raise ValueError(text)\n        return WorkflowOutput("
    workflow.write_text(text.replace("return WorkflowOutput(", raises))
    (yaml,) = (tmp_path / "tool").glob("*.yaml")
    more = ["ajet.rollout.policy_failure_reward=-1"] if paid else []
    done = ajet(
        "--conf", str(yaml), "--backbone", "local", "trainer_common.total_training_steps=1", *more, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
    (run,) = (path for path in (tmp_path / "launcher_record").iterdir() if path.is_dir())
    held_out = next(row for row in metric_rows(run) if "validation/tasks" in row)
    failed, tasks = held_out["validation/failed"], held_out["validation/tasks"]
    assert failed > tasks / 2 and held_out["validation/success_rate"] == (tasks - failed) / tasks
    (state,) = (json.loads(path.read_text()) for path in run.glob("checkpoints/step-1/state.json"))
    listed = ajet("runs", cwd=tmp_path).stdout
    if paid:
        assert held_out["validation/scored"] == tasks and held_out["validation/reward"] < 0
        assert f"{tasks} of {tasks} scored" in done.stdout and state["score"] < 0.5
    else:
        assert f"{tasks - failed} of {tasks} scored" in done.stdout or "no episode was scored" in done.stdout
        assert state["score"] is None or state["score"] < 0.5
    assert f"{failed} failed" in done.stdout and "held-out episodes failed" in done.stdout
    assert f"/{tasks})" in listed or f"none of {tasks}" in listed, listed
