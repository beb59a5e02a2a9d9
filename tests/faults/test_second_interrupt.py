"""Two Ctrl-C in the middle of a step: what is saved is the last whole step, or nothing is; the same command then trains
nothing twice, loses nothing, and ends at the bits of a run that nobody interrupted."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from ajet.backbone.local.optimizer import FlatAdamW
from ajet.backbone.local.trainer import Trainer
from ajet.config import load_experiment
from ajet.run import learn, train
from ajet.run.auditing.audit import audit_whole
from ajet.run.launch import launch
from ajet.run.options import LaunchOptions
from ajet.run.summary import Tally
from ajet.schema.errors import UserError
from ajet.store import RunStore
from tests.ajet_command import metric_rows

STEPS, SAVED, TORN = 4, 2, 4
"""Of a run; the step of the last checkpoint that is due before the one in which it is interrupted."""
SETTINGS = [
    "ajet.model={path: 'embedded:tiny-tools', dtype: float32}", "data.train_batch_size=2", "trainer_common.threads=1",
    "trainer_common.optim.lr=0.001", "trainer_common.max_checkpoints_to_keep=4", "trainer_common.test_freq=-1",
    f"trainer_common.total_training_steps={STEPS}", f"trainer_common.save_freq={SAVED}",
]  # fmt: skip
AGENT = """
from ajet import Workflow, WorkflowOutput

class Agent(Workflow):
    async def execute(self, workflow_task, tuner):
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


class Moment:
    """Calls of a method, in one of which a person interrupts twice: before what it does, or after."""

    def __init__(self, of: Any, name: str, *, call: int, after: bool) -> None:
        self.of, self.name, self.call, self.after = of, name, call, after

    def set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain, left = getattr(self.of, self.name), [self.call]

        def interrupted(*given: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not self.after:
                twice()
            done = plain(*given, **more)
            if left[0] == 0 and self.after:
                twice()
            return done

        monkeypatch.setattr(self.of, self.name, interrupted)


class SecondSlice(Moment):
    """Of an optimizer's step: some weights are moved, others not."""

    def set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain, left = FlatAdamW.step, [self.call]

        def step(optimizer: FlatAdamW, *given: Any, **more: Any) -> float:
            left[0] -= 1
            if left[0] == 0:
                Moment(optimizer, "_move", call=2, after=False).set(monkeypatch)
            return plain(optimizer, *given, **more)

        monkeypatch.setattr(FlatAdamW, "step", step)


def twice() -> None:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)


MOMENTS = {
    "gradients": (Moment(Trainer, "_gradients", call=TORN, after=True), TORN - 1),
    "optimizer": (SecondSlice(FlatAdamW, "step", call=TORN, after=False), SAVED),
    "before the store": (Moment(RunStore, "use", call=TORN, after=False), SAVED),
    "after the store": (Moment(learn, "conclude", call=TORN, after=False), SAVED),
    "after the record": (Moment(learn, "conclude", call=TORN, after=True), SAVED),
}
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
    run(folder, "taught", "whole")
    return folder


def run(project: Path, yaml: str, name: str) -> Path:
    settings = [*SETTINGS, f"experiment_name={name}"]
    experiment = load_experiment(project / f"{yaml}.yaml", backbone="local", overrides=settings, exp_dir=project)
    assert launch(experiment, LaunchOptions(rehearsal=False)) == 0
    return project / name


def interrupted(project: Path, yaml: str, name: str) -> str:
    """What it says of it."""
    told: list[str] = []
    sink = logger.add(told.append, format="{message}", level="WARNING")
    try:
        with pytest.raises(KeyboardInterrupt):
            run(project, yaml, name)
    finally:
        logger.remove(sink)
    return "".join(told)


def steps(folder: Path) -> list[int]:
    return sorted(int(each.name.removeprefix("step-")) for each in (folder / "checkpoints").glob("step-*"))


def outcome(folder: Path) -> tuple[dict[str, bytes], list[tuple[Any, ...]]]:
    """The last checkpoint's weights and optimizer, as bytes, and the numbers of each row."""
    last = folder / "checkpoints" / f"step-{STEPS}"
    files = [last / "model.safetensors", *(last / "trainer").iterdir()]
    names = ("step", "tasks", "loss", "grad_norm", "train/reward", "train/trained_tokens")
    return {file.name: file.read_bytes() for file in files}, [tuple(map(row.get, names)) for row in metric_rows(folder)]


def check(project: Path, yaml: str, whole: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moment, saved = MOMENTS[when]
    name = f"{yaml}-{when.replace(' ', '-')}"
    with monkeypatch.context() as patch:
        moment.set(patch)
        said = interrupted(project, yaml, name)
    folder = project / name
    assert steps(folder)[-1] == saved, said
    if saved == SAVED:
        assert "nothing is saved of it" in said and f"step-{SAVED}, after step {SAVED}" in said, said
    run(project, yaml, name)
    assert outcome(folder) == outcome(project / whole)
    tally, audited = Tally.of(metric_rows(folder)), audit_whole(folder)
    assert (tally.skipped, tally.doubled) == (0, 0)
    assert audited.ok and audited.state is not None and len(audited.state.steps) == STEPS, audited.changes


@pytest.mark.slow
@pytest.mark.parametrize("when", MOMENTS)
def test_a_second_interrupt_saves_a_whole_step_or_nothing(project, when, monkeypatch):
    check(project, "taught", "whole", when, monkeypatch)


@pytest.mark.slow
@pytest.mark.extra_slow
def test_a_training_whose_episodes_are_played(project, monkeypatch):
    run(project, "played", "all-played")
    for when in ("optimizer", "after the store"):
        check(project, "played", "all-played", when, monkeypatch)


@pytest.mark.slow
def test_a_run_that_its_agent_ends_keeps_what_it_learned(project, monkeypatch):
    """Every episode of a step fails, as where what the agent calls is away."""

    def all_fail(episodes: list[Any], step: int) -> None:
        if step == SAVED + 2:
            raise UserError("All episodes failed.")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="All episodes failed"):
        patch.setattr(train, "refuse_if_all_failed", all_fail)
        run(project, "played", "failing")
    folder = project / "failing"
    assert steps(folder) == [SAVED, SAVED + 1] and audit_whole(folder).ok
    assert json.loads((folder / "status.json").read_text())["outcome"] == "failed"
