"""kill -9 in the middle of `ajet sft`, then the same command: every bit as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.runs import ajet, audit_run, metric_rows, start

pytestmark = [pytest.mark.slow, pytest.mark.extra_slow]
STEPS = 6


def launch(objective: str, name: str) -> list[str]:
    return [
        "sft", "--model", "embedded:tiny-tools", "--objective", objective, "--data", f"{objective}.jsonl",
        f"experiment_name={name}", f"sft.val_files={objective}.jsonl", "model.dtype=float32",
        f"trainer_common.total_training_steps={STEPS}", "trainer_common.save_freq=1", "trainer_common.test_freq=2",
        "trainer_common.threads=1", "trainer_common.optim.lr=0.001", "data.train_batch_size=3",
    ]  # fmt: skip


def outcome(run: Path) -> tuple[dict[str, bytes], list[tuple]]:
    """The last checkpoint's weights and optimizer, as bytes, and the numbers of each row."""
    folder = run / "checkpoints" / f"step-{STEPS}"
    files = [folder / "model.safetensors", *(folder / "trainer").iterdir()]
    names = ("step", "tasks", "loss", "grad_norm", "dpo/margin", "validation/loss", "train/trained_tokens")
    return {file.name: file.read_bytes() for file in files}, [tuple(map(row.get, names)) for row in metric_rows(run)]


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, objective):
    ask = [{"role": "user", "content": "What does the eel cost?"}]
    said = [[{"role": "assistant", "content": f"\\boxed{{{price}}}"}] for price in range(10, 18)]
    rows = [{"prompt": ask, "completion": one, "chosen": one, "rejected": said[0]} for one in said[1:]]
    (tmp_path / f"{objective}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = ajet(*launch(objective, "whole"), cwd=tmp_path)
    assert whole.returncode == 0, whole.stdout
    run = tmp_path / "launcher_record" / "killed"
    for _ in range(2):
        process = start(*launch(objective, "killed"), cwd=tmp_path, log=tmp_path / "log")
        target = len(metric_rows(run)) + 1
        while process.poll() is None and len(metric_rows(run)) < target:
            time.sleep(0.02)  # polls the record
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = ajet(*launch(objective, "killed"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert outcome(run) == outcome(tmp_path / "launcher_record" / "whole")
    audited = audit_run(run)
    assert audited["ok"] and audited["chain"]["steps"] == STEPS, audited["changes"]
