"""A validation in which each episode fails before the first step: the run ends with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.cli import launcher

AGENT = """
async def agent(task, tuner):
    client = tuner.as_raw_openai_sdk_client()
    messages = [{"role": "user", "content": task.main_query}]
    reply = await client.chat.completions.create(messages=messages, max_tokens=2)
    return reply.choices[0].message.content


def reward(task, output):
    return float(task.metadata["answer"] in output.metadata["final_answer"])
"""
YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: rows.jsonl}, validation: {file_path: held.jsonl}}
  rollout: {user_workflow: agent.py->agent, num_repeat: 2, max_model_len: 128, max_retries: 0}
  task_judge: {judge_protocol: agent.py->reward}
  data: {train_batch_size: 1}
  trainer_common: {total_training_steps: 1, val_before_train: true, threads: 1}
"""


@pytest.mark.slow
def test_run_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "x.yaml").write_text(YAML)
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "Expected answer": "2"}\n')
    (tmp_path / "held.jsonl").write_text('{"question": "1 + 2?", "Expected answer": "3"}\n')
    with pytest.raises(SystemExit) as ended:
        launcher.main(["--conf", "x.yaml", "--backbone", "local"])
    printed = " ".join("".join(capsys.readouterr()).split())
    assert ended.value.code == 2
    assert "KeyError: 'answer'" in printed, printed
    assert "Expected answer" in printed
    assert "step 1/1" not in printed
