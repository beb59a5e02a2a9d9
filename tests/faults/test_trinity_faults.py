"""The training command of AgentJet's first tutorial, on Trinity; a Ray worker of it is killed. The run ends and says
why, nothing of it stays, and the same command goes on."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.ajet_command import ajet, metric_rows, start
from tests.docs.snippets import ROOT
from tests.trinity_here import skip_without_trinity
from tests.world_fixtures import until

pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]
MATH = ROOT / "tutorial" / "example_math_agent" / "math_agent.yaml"
MARK = "AJET_TEST_TRINITY_RUN"
SMALL = [
    "model.path=embedded:tiny-tools", "rollout.max_model_len=1024", "rollout.max_response_length_in_one_turn=24",
    "data.max_prompt_length=512", "rollout.num_repeat=4", "data.train_batch_size=2", "trainer_common.device=cpu",
    "trainer_common.save_freq=1", "trainer_common.max_checkpoints_to_keep=2",
]  # fmt: skip
MANY = 500
"""Steps: more than are taken before the kill."""


def marked(mark: str, title: str = "") -> list[psutil.Process]:
    """Processes of that launch, by what stands in their titles."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get(MARK) == mark and title in " ".join(each.cmdline()):
                found.append(each)
    return found


@pytest.mark.parametrize("killed", ["WorkflowRunner", "WorkerDict"])
def test_a_killed_worker_ends_the_tutorials_training_and_the_same_command_goes_on(tmp_path: Path, killed: str) -> None:
    skip_without_trinity()
    (tmp_path / "main").mkdir()
    for split in ("train", "test"):
        rows = ({"question": f"What is {n} + 2?", "answer": f"#### {n + 2}"} for n in range(64))
        (tmp_path / "main" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"task_reader.huggingface_dat_repo.dataset_path={tmp_path / 'main'}"
    given = ["--conf", str(MATH), "--backbone", "trinity", "--with-ray", *SMALL, data]
    mark, log = uuid.uuid4().hex, tmp_path / "log.txt"
    ours = {"RAY_worker_niceness": "0", MARK: mark}
    going = start(*given, f"trainer_common.total_training_steps={MANY}", cwd=tmp_path, log=log, **ours)
    run = tmp_path / "launcher_record" / "math_agent"

    def steps() -> list[int]:
        return [row["step"] for row in metric_rows(run) if "tasks" in row] if (run / "metrics.jsonl").exists() else []

    try:
        while not steps() and going.poll() is None:
            time.sleep(0.5)
        assert steps(), log.read_text()[-6000:]
        (worker, *_) = marked(mark, killed)
        worker.kill()
        assert going.wait(600) == 1, log.read_text()[-6000:]
    finally:
        going.kill()
        going.wait()
    said = log.read_text()
    assert "the same command goes on from the last checkpoint" in said, said[-6000:]
    assert until(lambda: not marked(mark), 120), [each.cmdline() for each in marked(mark)]
    taken = steps()
    done = ajet(
        *given, f"trainer_common.total_training_steps={taken[-1] + 1}", cwd=tmp_path, timeout=1500, **ours
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    assert steps() == list(range(1, taken[-1] + 2)) == [*taken, taken[-1] + 1]
