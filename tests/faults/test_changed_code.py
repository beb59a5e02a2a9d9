"""The same command with a changed judge, from another project, or without its checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.runs import ajet, metric_rows

pytestmark = pytest.mark.slow
AGENT = """
async def agent(task, tuner):
    words = [{"role": "user", "content": task.main_query}]
    reply = await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=words, max_tokens=2)
    return reply.choices[0].message.content
"""
JUDGE = "def reward(task, output):\n    return 0.125\n"
YAML = """ajet:
  backbone: local
  model: {path: "embedded:tiny-tools"}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: tasks.jsonl}, validation: {file_path: held_out.jsonl}}
  task_judge: {judge_protocol: judge.py->reward}
  rollout: {user_workflow: agent.py->agent, num_repeat: 2, max_model_len: 100}
  data: {train_batch_size: 1, max_prompt_length: 60, max_response_length: 30}
  trainer_common:
    {threads: 1, stop_after_idle_steps: 0, save_freq: 1, test_freq: 1, val_before_train: true, total_training_steps: 1}
"""
FILES = {
    "agent.py": AGENT,
    "judge.py": JUDGE,
    "m.yaml": YAML,
    "tasks.jsonl": '{"question": "one?", "id": "a"}\n',
    "held_out.jsonl": '{"question": "two?", "id": "b"}\n',
}


def test_a_run_goes_on_with_its_own_code_only(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for name, text in FILES.items():
            (tmp_path / folder / name).write_text(text)
    run, two = tmp_path / "launcher_record" / "m", "trainer_common.total_training_steps=2"
    begun = ajet("--conf", "a/m.yaml", cwd=tmp_path)
    assert begun.returncode == 0, begun.stdout
    before = (run / "metrics.jsonl").read_bytes()

    other = ajet("--conf", "b/m.yaml", two, cwd=tmp_path)
    assert other.returncode == 2 and "Traceback" not in other.stdout, other.stdout
    assert all(f"{each}/m.yaml" in other.stdout for each in "ab")
    assert "ajet.experiment_name" in other.stdout

    (tmp_path / "a" / "judge.py").write_text(JUDGE.replace("0.125", "-5"))
    refused = ajet("--conf", "a/m.yaml", two, cwd=tmp_path)
    assert refused.returncode == 2 and "judge.py" in refused.stdout and "agent.py" not in refused.stdout, refused.stdout
    assert "--fresh" in refused.stdout and f"--resume {run}" in refused.stdout
    assert (run / "metrics.jsonl").read_bytes() == before and not (run / "lock.json").exists()

    known = ajet("--conf", "a/m.yaml", two, "--resume", str(run), cwd=tmp_path)
    assert known.returncode == 0, known.stdout
    held_out = [line for line in known.stdout.splitlines() if line.startswith("Held out")]
    assert "0.12" not in known.stdout and held_out == [], "one validation of the new judge compares with none"
    (change,) = json.loads((run / "run.json").read_text())["changes"]
    assert change["step"] == 1 and [*change["files"]] == ["judge.py"] and change["judge"]

    rows = len(metric_rows(run))
    shutil.rmtree(run / "checkpoints")
    anew = ajet("--conf", "a/m.yaml", cwd=tmp_path)
    assert anew.returncode == 0 and "m.old-1" in anew.stdout, anew.stdout
    assert len(metric_rows(run.with_name("m.old-1"))) == rows > len(metric_rows(run)) > 0
