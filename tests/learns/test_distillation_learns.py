"""On-policy distillation: a policy that was taught otherwise becomes its teacher again, and the record proves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.ajet_process import ajet, metric_rows

pytestmark = [pytest.mark.slow, pytest.mark.extra_slow]
ITEMS = {"eel": 71, "ham": 18, "jam": 43, "fig": 90}
STEADY = ["model.dtype=float32", "trainer_common.threads=1", "seed=1"]
AGENT = """
async def agent(task, tuner):
    client = tuner.as_raw_openai_sdk_client()
    await client.chat.completions.create(
        model="x", messages=[{"role": "user", "content": task.main_query}], max_tokens=16
    )
    return 0.0
"""
YAML = """
ajet:
  backbone: local
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}
  rollout: {user_workflow: agent.py->agent, num_repeat: 8, temperature: 1.0, deterministic: true}
  data: {train_batch_size: 4}
  trainer_common:
    use_kl_loss: false
    total_training_steps: 12
    save_freq: 6
    optim: {lr: 1.0e-3}
    algorithm: {adv_estimator: distillation, loss_aggregation: token, teacher: {TEACHER}}
"""


def learns_from(folder: Path, teacher: str) -> None:
    """`teacher`: tiny-tools, as the YAML names it. The policy was taught other prices before."""
    asked = {item: f"What does the {item} cost?" for item in ITEMS}
    rows = [
        {
            "messages": [
                {"role": "user", "content": asked[item]},
                {"role": "assistant", "content": f"\\boxed{{{price}}}"},
            ]
        }
        for item, price in ITEMS.items()
    ]
    tasks = [{"main_query": question} for question in asked.values()]
    for name, lines in (("rows", rows), ("tasks", tasks)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "agent.py").write_text(AGENT)
    (folder / "distil.yaml").write_text(YAML.replace("TEACHER", teacher))
    settings = ["data.train_batch_size=4", "trainer_common.total_training_steps=10", "trainer_common.optim.lr=0.002"]
    named = ["--model", "embedded:tiny-tools", "--data", "rows.jsonl"]
    taught = ajet("sft", *named, *STEADY, *settings, cwd=folder)
    assert taught.returncode == 0, taught.stdout

    policy = folder / "launcher_record" / "sft" / "checkpoints" / "step-10"
    done = ajet("--conf", "distil.yaml", *STEADY, f"model.path={policy}", cwd=folder)
    assert done.returncode == 0, done.stdout
    apart = [row["distillation/reverse_kl"] for row in metric_rows(folder / "launcher_record" / "distil")]
    assert apart[0] > 0.8 and sum(apart[-3:]) / 3 < apart[0] / 3, apart

    proven = ajet("prove", "distil", cwd=folder)
    assert proven.returncode == 0 and "Credit of 12 steps recomputed" in proven.stdout, proven.stdout


def test_the_policy_becomes_its_teacher(tmp_path):
    learns_from(tmp_path, "path: 'embedded:tiny-tools'")
