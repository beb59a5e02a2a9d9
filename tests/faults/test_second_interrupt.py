"""Two Ctrl-C in the middle of a step: what is saved is the last whole step, or nothing is; the same command then trains
nothing twice, loses nothing, and ends at the bits of a run that nobody interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import Ran, audit_run, count_tasks, interrupted_twice, metric_rows, record_refuses, run_here

STEPS, SAVED, TORN = 4, 2, 4
"""Of a run; the step of the last checkpoint that is due before the one in which it is interrupted."""
SETTINGS = [
    "ajet.model={path: 'embedded:tiny-tools', dtype: float32}", "data.train_batch_size=2", "trainer_common.threads=1",
    "trainer_common.optim.lr=0.001", "trainer_common.max_checkpoints_to_keep=4", "trainer_common.test_freq=-1",
    f"trainer_common.total_training_steps={STEPS}", f"trainer_common.save_freq={SAVED}",
]  # fmt: skip
AGENT = """
from pathlib import Path
from ajet import Workflow, WorkflowOutput

FAILS = Path(__file__).parent / "fails"  # names the rows of a run, and how many it has as the agent's tool goes away

class Agent(Workflow):
    async def execute(self, workflow_task, tuner):
        if FAILS.exists():
            rows, count = FAILS.read_text().split()
            if Path(rows).exists() and len(Path(rows).read_text().splitlines()) >= int(count):
                raise ConnectionError("the tool is away")
        words = [{"role": "user", "content": workflow_task.task.main_query}]
        await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=words, max_tokens=4)
        return WorkflowOutput(reward=float(workflow_task.task_thread_index))  # attempts differ, so each step learns
"""
PLAYED = """ajet:
  task_reader: {type: random_dummy}
  rollout: {user_workflow: agent.py->Agent, num_repeat: 2, max_model_len: 100, deterministic: true}
  data: {max_prompt_length: 60, max_response_length: 30}
  trainer_common: {use_kl_loss: false}
"""


MOMENTS = {
    "gradients": TORN - 1, "optimizer": SAVED, "before the store": SAVED, "after the store": SAVED,
    "after the record": SAVED,
}  # fmt: skip
"""When, and the step of the checkpoint that there is afterwards."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    rows = [
        {"messages": [{"role": "user", "content": f"What does the {item} cost?"},
                      {"role": "assistant", "content": f"\\boxed{{{10 + at}}}"}]}
        for at, item in enumerate(("eel", "ham", "jam", "fig", "tea", "pie"))
    ]  # fmt: skip
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "taught.yaml").write_text("ajet: {sft: {train_files: rows.jsonl, objective: sft}}\n")
    (folder / "agent.py").write_text(AGENT)
    (folder / "played.yaml").write_text(PLAYED)
    finish(folder, "taught", "whole")
    return folder


def run(project: Path, yaml: str, name: str) -> Ran:
    settings = [*SETTINGS, f"experiment_name={name}"]
    where = ["--conf", project / f"{yaml}.yaml", "--backbone", "local", "--exp-dir", project, "--no-rehearsal"]
    return run_here(*where, *settings)


def finish(project: Path, yaml: str, name: str) -> None:
    done = run(project, yaml, name)
    assert done.code == 0, done.printed


def steps(folder: Path) -> list[int]:
    return sorted(int(each.name.removeprefix("step-")) for each in (folder / "checkpoints").glob("step-*"))


def outcome(folder: Path) -> tuple[dict[str, bytes], list[tuple[Any, ...]]]:
    """The last checkpoint's weights and optimizer, as bytes, and the numbers of each row."""
    last = folder / "checkpoints" / f"step-{STEPS}"
    files = [last / "model.safetensors", *(last / "trainer").iterdir()]
    names = ("step", "tasks", "loss", "grad_norm", "train/reward", "train/trained_tokens")
    return {file.name: file.read_bytes() for file in files}, [tuple(map(row.get, names)) for row in metric_rows(folder)]


def check(project: Path, yaml: str, whole: str, when: str) -> None:
    saved, name = MOMENTS[when], f"{yaml}-{when.replace(' ', '-')}"
    with interrupted_twice(when, step=TORN):
        done = run(project, yaml, name)
    folder, said = project / name, done.printed
    assert done.code == 130, said
    assert steps(folder)[-1] == saved, said
    if saved == SAVED:
        assert "the step is not saved" in said and f"step-{SAVED}, after step {SAVED}" in said, said
    finish(project, yaml, name)
    assert outcome(folder) == outcome(project / whole)
    audited = audit_run(folder)
    assert count_tasks(metric_rows(folder)) == (0, 0, ())
    assert audited["ok"] and audited["chain"]["steps"] == STEPS, audited["changes"]


@pytest.mark.slow
@pytest.mark.parametrize("when", MOMENTS)
def test_a_second_interrupt_saves_a_whole_step_or_nothing(project, when):
    check(project, "taught", "whole", when)


@pytest.mark.slow
@pytest.mark.extra_slow
def test_a_training_whose_episodes_are_played(project):
    finish(project, "played", "all-played")
    for when in ("optimizer", "after the store"):
        check(project, "played", "all-played", when)


@pytest.mark.slow
def test_a_run_that_its_agent_ends_keeps_what_it_learned(project):
    """Every episode of a step fails, as where what the agent calls is away."""
    folder = project / "failing"
    fails = project / "fails"
    fails.write_text(f"{folder / 'metrics.jsonl'} {SAVED + 1}")
    try:
        done = run(project, "played", "failing")
    finally:
        fails.unlink()
    assert done.code == 2 and f"step {SAVED + 2}" in done.printed and "the tool is away" in done.printed, done.printed
    assert steps(folder) == [SAVED, SAVED + 1] and audit_run(folder)["ok"]
    assert json.loads((folder / "status.json").read_text())["outcome"] == "failed"


@pytest.mark.slow
def test_a_step_that_is_not_recorded_is_not_saved(project):
    """Its update has moved the weights: a checkpoint would be of no step."""
    with record_refuses(TORN, "the disk takes nothing"):
        done = run(project, "played", "unrecorded")
    assert done.code == 2 and "the disk takes nothing" in done.printed, done.printed
    assert steps(project / "unrecorded") == [SAVED] and len(metric_rows(project / "unrecorded")) == TORN - 1
