"""`ajet sft` learns what it is given: the model says it, and prefers it."""

from __future__ import annotations

import json

import pytest

from tests.support.ajet_process import ajet, metric_rows

pytestmark = [pytest.mark.slow, pytest.mark.extra_slow]
ITEMS = {"eel": 71, "ham": 18, "jam": 43, "fig": 90}
PACE = [
    "model.dtype=float32", "trainer_common.threads=1", "data.train_batch_size=4", "trainer_common.save_freq=0",
    "trainer_common.optim={lr: 0.003, lr_schedule: linear}",
]  # fmt: skip


def asked(item: str) -> list[dict]:
    return [{"role": "user", "content": f"What does the {item} cost?"}]


def boxed(price: int) -> list[dict]:
    return [{"role": "assistant", "content": f"\\boxed{{{price}}}"}]


def test_the_model_says_what_it_was_taught(tmp_path):
    rows = [{"prompt": asked(item), "completion": boxed(price)} for item, price in ITEMS.items()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = ["sft", "--model", "embedded:tiny-tools", "--data", "rows.jsonl", *PACE]
    done = ajet(*named, "trainer_common.total_training_steps=30", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    losses = [row["loss"] for row in metric_rows(tmp_path / "launcher_record" / "sft")]
    assert losses[0] > 0.5 and losses[-1] < 0.1, losses[::10]
    for item, price in ITEMS.items():
        said = ajet("chat", "sft", "--prompt", f"What does the {item} cost?", cwd=tmp_path)
        assert f"\\boxed{{{price}}}" in said.stdout, said.stdout


def test_pairs_teach_what_is_preferred(tmp_path):
    rows = [{"prompt": asked(item), "chosen": boxed(p), "rejected": boxed(p + 5)} for item, p in ITEMS.items()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = ["sft", "--model", "embedded:tiny-tools", "--objective", "dpo", "--data", "rows.jsonl", *PACE]
    done = ajet(*named, "trainer_common.total_training_steps=20", "sft.beta=0.3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    found = metric_rows(tmp_path / "launcher_record" / "sft")
    assert found[0]["dpo/margin"] == 0, "it begins as the reference model"
    assert found[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert found[-1]["dpo/accuracy"] == 1 and found[-1]["loss"] < 0.3 < found[-1]["dpo/margin"]
