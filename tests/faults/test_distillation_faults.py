"""A teacher's server that hangs within a run, while the run itself is killed with -9: nothing is trained that it did
not speak of, and nothing is lost or trained twice.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.learns.test_distillation_learns import AGENT, YAML
from tests.support.ajet_process import ajet, metric_rows, start
from tests.support.judge_fixtures import judge_server
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.extra_slow]
STEPS = 5
TEACHER = "base_url: '{URL}', model: t, timeout: 2.0, max_retries: 0"
STEADY = ["model.path='embedded:tiny-tools'", "model.dtype=float32", "trainer_common.threads=1", "seed=1"]
PACE = [
    f"trainer_common.total_training_steps={STEPS}", "trainer_common.save_freq=1", "rollout.breaker.window=16",
    "rollout.deterministic=false",
]  # fmt: skip


class Hangs:
    """A teacher that says -1 nat of every token; while `silent` is set it answers nobody."""

    def __init__(self) -> None:
        self.silent, self.unanswered = threading.Event(), 0

    def __call__(self, asked: dict[str, Any]) -> Any:
        self.unanswered += self.silent.is_set()
        while self.silent.is_set():
            time.sleep(5.0)  # longer than anybody waits for it
        rows = [{str(token): {"logprob": -1.0}} for token in asked["prompt"][1:]]
        return {"choices": [{"prompt_logprobs": [None, *rows]}]}


def test_a_teacher_that_hangs_and_a_run_that_is_killed(tmp_path: Path) -> None:
    run, teacher = tmp_path / "launcher_record" / "distil", Hangs()
    tasks = [{"main_query": f"What does the {item} cost?"} for item in ("eel", "ham", "jam", "fig")]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (tmp_path / "agent.py").write_text(AGENT)
    with judge_server(teacher) as server:
        (tmp_path / "distil.yaml").write_text(YAML.replace("TEACHER", TEACHER.replace("{URL}", server.url)))
        launch = ["--conf", "distil.yaml", *STEADY, *PACE]
        process = start(*launch, cwd=tmp_path, log=tmp_path / "log")
        assert until(lambda: len(metric_rows(run)) >= 1, run=process)
        teacher.silent.set()
        assert until(lambda: teacher.unanswered >= 8, run=process)
        time.sleep(2.0)  # attempts fail for want of it
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        teacher.silent.clear()
        process = start(*launch, cwd=tmp_path, log=tmp_path / "log2")
        assert until(lambda: len(metric_rows(run)) >= 3, run=process)
        before = teacher.unanswered
        teacher.silent.set()
        assert until(lambda: teacher.unanswered >= before + 24, run=process)
        time.sleep(2.0)
        teacher.silent.clear()
        assert process.wait(300) == 0, (tmp_path / "log2").read_text()
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert [row["step"] for row in rows] == [*range(1, STEPS + 1)]
    assert Counter(order for row in rows for order in row["tasks"]) == Counter(range(4 * STEPS))
    said = (tmp_path / "log2").read_text()
    assert "because of the judge" in said and "starts attempts again" in said, said
    assert all(0 < row["train/scored"] <= 32 for row in rows)
    assert all(row["distillation/reverse_kl"] is not None for row in rows)
    proven = ajet("prove", "distil", cwd=tmp_path)
    assert proven.returncode == 0 and f"Credit of {STEPS} steps recomputed" in proven.stdout, proven.stdout
