"""A validation that the checkpoint lacks, since the run was ended before it, and a run that is ended again and again
after it: each attempt is recorded once, in one row, whatever was on the disk already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.runs import (
    Ran,
    audit_run,
    killed_before_commit,
    killed_before_row,
    metric_rows,
    run_here,
    validation_is_interrupted,
)

STEPS, HELD_OUT, REPEATS = 3, 3, 2
YAML = f"""ajet:
  experiment_name: ended
  model: {{path: 'embedded:tiny-tools', dtype: float32}}
  task_reader: {{type: random_dummy, random_dummy: {{validation_size: {HELD_OUT}}}}}
  rollout: {{user_workflow: agent.py->Agent, num_repeat: 2, max_model_len: 100, val_kwargs: {{num_repeat: {REPEATS}}}}}
  data: {{max_prompt_length: 60, max_response_length: 30, train_batch_size: 2}}
  trainer_common:
    {{threads: 1, use_kl_loss: false, total_training_steps: {STEPS}, save_freq: 99, test_freq: 2}}
"""


AGENT = """
from ajet import Workflow, WorkflowOutput

class Agent(Workflow):
    async def execute(self, workflow_task, tuner):
        words = [{"role": "user", "content": workflow_task.task.main_query}]
        await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=words, max_tokens=4)
        return WorkflowOutput(reward=float(workflow_task.task_thread_index))  # attempts differ, so each step learns
"""


def launched(folder: Path) -> Ran:
    return run_here("--conf", folder / "demo.yaml", "--backbone", "local", "--exp-dir", folder, "--no-rehearsal")


def uuids(file: Path) -> list[str]:
    return [json.loads(line)["uuid"] for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_a_validation_that_the_checkpoint_lacks_is_recorded_once(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "demo.yaml").write_text(YAML)
    run, file = tmp_path / "ended", tmp_path / "ended" / "episodes" / "step-2.validation.jsonl"
    with validation_is_interrupted():
        ended = launched(tmp_path)
    assert ended.code == 130, ended.printed
    assert [path.name for path in run.glob("checkpoints/step-*")] == ["step-2"] and not file.exists()
    with killed_before_row():
        ended = launched(tmp_path)
    assert ended.code == 1, ended.printed
    whole = uuids(file)
    assert len({*whole}) == len(whole) == HELD_OUT * REPEATS
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + lines[3][:20])  # killed in the middle of its write
    with killed_before_commit():
        ended = launched(tmp_path)
    assert ended.code == 1, ended.printed
    assert sorted(uuids(file)) == sorted(whole) and uuids(file)[:3] == whole[:3]
    ended = launched(tmp_path)
    assert ended.code == 0, ended.printed
    assert sorted(uuids(file)) == sorted(whole)
    rows = [row for row in metric_rows(run) if "validation/tasks" in row]
    assert [row["step"] for row in rows] == [2, STEPS]
    assert [row["validation/episodes"] for row in rows] == [HELD_OUT * REPEATS] * 2
    audited = audit_run(run)
    assert audited["ok"], audited["changes"]
