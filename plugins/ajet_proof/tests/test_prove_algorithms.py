"""`ajet prove` computes the credit of each algorithm again: a short run of each is right, and is found wrong once its
record says that it was another."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ajet.commands.launch import launch
from ajet.config import load_experiment
from ajet.record import EpisodeFiles
from ajet.train.runner import LaunchOptions
from ajet_proof.recorded.draws import NOT_ALL
from ajet_proof.recorded.losses import OTHERS, SEVERAL, TEACHER
from ajet_proof.recorded.prove import ProofReport, prove_record
from tests.support.ajet_process import metric_rows

AGENT = """
import zlib

from ajet import ProcessReward, Workflow, WorkflowOutput


class TwoTurns(Workflow):
    \"\"\"What came of it follows from what was said; the second turn has a worth of its own.\"\"\"

    async def execute(self, task, tuner):
        client, said = tuner.as_raw_openai_sdk_client(), []
        for turn in range(2):
            words = [{"role": "user", "content": f"{task.task.main_query} {turn}"}]
            reply = await client.chat.completions.create(model="policy", messages=words, max_tokens=6 + 6 * turn)
            said.append(zlib.crc32((reply.choices[0].message.content or "").encode()) % 8 / 8)
        parts = [ProcessReward(reward=worth, step=turn) for turn, worth in enumerate(said)]
        return WorkflowOutput(reward=sum(said), process=parts, metadata={"final_answer": str(said[0])})


class Talk(Workflow):
    async def execute(self, task, tuner):
        client, words = tuner.as_raw_openai_sdk_client(), []
        for turn in range(2):
            words.append({"role": "user", "content": f"{task.task.main_query} {turn}"})
            reply = await client.chat.completions.create(model="policy", messages=words, max_tokens=6)
            words.append(reply.choices[0].message.model_dump(exclude_none=True))
        return WorkflowOutput(reward=zlib.crc32((words[-1].get("content") or "").encode()) % 8 / 8)


class Judged(TwoTurns):
    async def execute(self, task, tuner):
        output = await super().execute(task, tuner)
        return WorkflowOutput(metadata=output.metadata)


def first(model_answer, ground_truth):
    return float(model_answer)


def parity(model_answer, ground_truth):
    return float(int(float(model_answer) * 8) % 2)
"""
YAML = """
ajet:
  backbone: local
  model: {path: "embedded:tiny-tools", dtype: float32}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}
  rollout: {user_workflow: agent.py->TwoTurns, num_repeat: 3, temperature: 2.5, max_model_len: 256}
  data: {train_batch_size: 2, max_prompt_length: 200, max_response_length: 50}
  trainer_common:
    {threads: 1, use_kl_loss: false, total_training_steps: 2, save_freq: 2, test_freq: 0, optim: {lr: 0.001}}
"""
ALGORITHM = "trainer_common.algorithm"
SCORERS = (
    "task_judge.scorers=[{name: 'agent.py->first'}, {name: 'agent.py->parity'}]",
    "rollout.user_workflow='agent.py->Judged'",
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps({"main_query": f"say {n}", "metadata": {"answer": "1"}}) + "\n" for n in range(8))
    )
    (tmp_path / "run.yaml").write_text(YAML)
    return tmp_path


def trained(project: Path, *settings: str) -> Path:
    overrides = ["experiment_name=run", *settings]
    experiment = load_experiment(project / "run.yaml", backbone="local", overrides=overrides, exp_dir=project / "runs")
    assert launch(experiment, LaunchOptions(rehearsal=False)) == 0
    return project / "runs" / "run"


def proven(run: Path) -> ProofReport:
    return prove_record(str(run), run.parent, ids_only=True)


def pretend(run: Path, key: str, value: Any) -> None:
    """Write another value of a setting into the record."""
    path = run / "resolved.yaml"
    tree = yaml.safe_load(path.read_text())
    *above, last = key.split(".")
    node = tree["ajet"]
    for name in above:
        node = node[name]
    node[last] = value
    path.write_text(yaml.safe_dump(tree))


CASES: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "gdpo": (
        (f"{ALGORITHM}.adv_estimator=gdpo", "rollout.num_repeat=4", *SCORERS),
        f"{ALGORITHM}.reward_weights", {"parity": 3.0},
    ),
    "gigpo": ((f"{ALGORITHM}.adv_estimator=gigpo",), f"{ALGORITHM}.step_discount", 0.5),
    "rloo": ((f"{ALGORITHM}.adv_estimator=rloo",), f"{ALGORITHM}.adv_estimator", "grpo"),
    "reinforce_plus_plus": (
        (f"{ALGORITHM}.adv_estimator=reinforce_plus_plus",), f"{ALGORITHM}.adv_estimator", "grpo",
    ),
    "overlong": (
        (f"{ALGORITHM}.overlong={{length: 16, buffer: 12, penalty: 2.0}}",), f"{ALGORITHM}.overlong.penalty", 0.5,
    ),
    "process rewards": ((f"{ALGORITHM}.process_weight=0.7",), f"{ALGORITHM}.process_weight", 0.2),
    "curriculum": (("data.curriculum={prefer: uncertain, share: 0.5}",), f"{ALGORITHM}.adv_estimator", "rloo"),
    "opsd": ((f"{ALGORITHM}.adv_estimator=opsd",), f"{ALGORITHM}.adv_estimator", "grpo"),
    "kl in the reward": (
        (f"{ALGORITHM}.use_kl_in_reward=true", f"{ALGORITHM}.kl_in_reward_coef=0.5"),
        f"{ALGORITHM}.kl_in_reward_coef", 0.1,
    ),
}  # fmt: skip
"""By name: the settings that are trained with, and one of them that the record is made to say otherwise."""


ALWAYS = ("gigpo", "kl in the reward")
"""Of which credit reads most of the record; the others cost three seconds each, too."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.extra_slow) for name in CASES]
)
def test_the_credit_of_each_algorithm_is_computed_again(project, name):
    settings, key, other = CASES[name]
    run = trained(project, *settings)
    report = proven(run)
    assert report.ok and report.held_steps == 2 and not report.unheld_steps, report.wrong_steps
    pretend(run, key, other)
    told = {wrong.what.partition(" ")[2].partition(" ")[0] for wrong in proven(run).wrong_steps}
    assert "credit" in told, "the record rests on this setting"


@pytest.mark.slow
@pytest.mark.extra_slow
def test_what_a_curriculum_drew_is_drawn_again(project):
    """Four tasks an epoch, two a step: the second epoch follows from what came of the first (that other outcomes give
    other draws: `unit/test_proof_draws.py`)."""
    draws = "data.curriculum={prefer: hard, share: 0.5, floor: 0.01}"
    run = trained(project, draws, "trainer_common.total_training_steps=4")
    report = proven(run)
    assert report.ok and report.held_draws == 2 and not report.unheld_draws, report.wrong_steps
    parts = prove_record(str(run), run.parent, steps=[3], ids_only=True)
    assert parts.ok and parts.held_draws == 0 and parts.unheld_draws == {NOT_ALL: 1}
    pretend(run, "seed", 8)
    said = [wrong.what for wrong in proven(run).wrong_steps]
    assert any(what.startswith("position ") and "the curriculum draws" in what for what in said), said


LOSSES: dict[str, tuple[str, ...]] = {
    "kl": ("trainer_common.use_kl_loss=true", "trainer_common.kl_loss_coef=0.5"),
    "kl over adapters": (
        "trainer_common.use_kl_loss=true", "trainer_common.kl_loss_coef=0.5", "trainer_common.lora.rank=4",
    ),
    "replies": (f"{ALGORITHM}.policy_loss=gspo", f"{ALGORITHM}.is_cap=1.5", "rollout.top_p=0.8"),
    "echo": (f"{ALGORITHM}.adv_estimator=echo", "rollout.user_workflow='agent.py->Talk'"),
    "dppo": (f"{ALGORITHM}.policy_loss=dppo_tv",),
    "bfloat16": ("trainer_common.use_kl_loss=true", "model.dtype=bfloat16", f"{ALGORITHM}.is_cap=1.5"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.extra_slow
@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_each_kind_is_computed_again(project, name):
    run = trained(project, *LOSSES[name], "trainer_common.save_freq=1")
    report = prove_record(str(run), run.parent)
    assert report.ok and report.held_losses == 2 and not report.unheld_losses, report.wrong_steps
    rows = [row for row in metric_rows(run) if "tasks" in row]
    assert abs(rows[1]["loss"]) > 1e-4, "there is something to tell"
    least = 0.1 if name == "bfloat16" else 0.01  # beyond what a number of the format may be apart
    for key in ("loss", "kl") if "kl" in name else ("loss",):
        path, moved = run / "metrics.jsonl", rows[1][key] * 1.1 + least
        before = path.read_text()
        lines = [json.loads(line) for line in before.splitlines()]
        next(row for row in lines if row.get("step") == 2 and "tasks" in row)[key] = moved
        path.write_text("".join(json.dumps(row) + "\n" for row in lines))
        assert [wrong.what.split()[:3] for wrong in prove_record(str(run), run.parent).wrong_steps] == [
            [key, "is", str(moved)]
        ]
        path.write_text(before)


@pytest.mark.slow
@pytest.mark.extra_slow
def test_a_loss_of_several_optimizer_steps_is_counted(project):
    run = trained(project, "trainer_common.mini_batch_num=2", "trainer_common.save_freq=1")
    report = prove_record(str(run), run.parent)
    assert report.ok and report.held_losses == 0 and report.unheld_losses == {SEVERAL: 2}


@pytest.mark.slow
@pytest.mark.extra_slow
def test_a_loss_against_a_teacher_is_counted(project):
    teacher = f"{ALGORITHM}.teacher={{path: 'embedded:tiny-tools', top_k: 5}}"
    run = trained(project, f"{ALGORITHM}.adv_estimator=gkd", teacher, "rollout.temperature=1.0")
    report = prove_record(str(run), run.parent)
    assert report.ok and report.held_steps == 2 and report.unheld_losses == {TEACHER: 2}


@pytest.mark.slow
@pytest.mark.extra_slow
def test_steps_of_a_run_that_went_on_with_changed_values_are_counted_where_they_do_not_follow_from_those(project):
    run = trained(project, "trainer_common.save_freq=1")
    changed = (
        f"{ALGORITHM}.loss_aggregation=token",
        f"{ALGORITHM}.adv_estimator=rloo",
        "trainer_common.total_training_steps=3",
    )
    overrides = ["experiment_name=run", "trainer_common.save_freq=1", *changed]
    experiment = load_experiment(project / "run.yaml", backbone="local", overrides=overrides, exp_dir=project / "runs")
    assert launch(experiment, LaunchOptions(rehearsal=False, resume=str(run))) == 0
    report = prove_record(str(run), run.parent)
    assert report.ok and report.held_losses == 1, report.wrong_steps
    assert report.held_steps == 1 and report.unheld_steps == {OTHERS: 2}
    path = run / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    next(row for row in lines if row.get("step") == 3 and "tasks" in row)["loss"] = 7.0
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))
    assert [wrong.what.split()[:3] for wrong in prove_record(str(run), run.parent).wrong_steps] == [
        ["loss", "is", "7.0"]
    ]


PAIRS = [
    "ajet.model={path: 'embedded:tiny-tools', dtype: float32}", "ajet.sft={objective: dpo, train_files: pairs.jsonl}",
    "data.train_batch_size=4", "trainer_common.threads=1", "trainer_common.optim.lr=0.001",
    "trainer_common.total_training_steps=2", "trainer_common.save_freq=2", "experiment_name=run",
]  # fmt: skip


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    rows = [
        {
            "prompt": [{"role": "user", "content": f"What does the {item} cost?"}],
            "chosen": [{"role": "assistant", "content": str(10 + at)}],
            "rejected": [{"role": "assistant", "content": f"{20 + at} or more"}],
        }
        for at, item in enumerate(("eel", "ham", "jam", "fig"))
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.yaml").write_text("ajet: {}\n")
    experiment = load_experiment(folder / "run.yaml", backbone="local", overrides=PAIRS, exp_dir=folder / "runs")
    assert launch(experiment, LaunchOptions(rehearsal=False)) == 0
    return folder / "runs" / "run"


@pytest.fixture
def pairs(taught: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(taught, tmp_path / "run", ignore=shutil.ignore_patterns("logs")))


@pytest.mark.slow
def test_the_credit_of_pairs_is_computed_again(pairs):
    report = proven(pairs)
    assert report.ok and report.held_steps == 2 and not report.unheld_steps, report.wrong_steps
    gaps = [outcome.reference_gap for _, outcome in EpisodeFiles(pairs / "episodes").recorded(2)]
    assert all(gap is not None and gap.any() for gap in gaps), "after an update the two models differ"
    assert metric_rows(pairs)[1]["dpo/margin"] > 0
    pretend(pairs, "sft.beta", 0.2)
    assert {wrong.what.partition(" ")[0] for wrong in proven(pairs).wrong_steps} >= {"the", "loss", "dpo/margin"}


@pytest.mark.slow
def test_what_the_reference_model_said_of_pairs_is_held(pairs):
    """Changed, it gives other credit; taken from one episode or from all, it is missed."""
    files = EpisodeFiles(pairs / "episodes")
    plain = files.recorded(2)

    def said(change: Any) -> ProofReport:
        for path in (files.path(2), files.path(2).with_suffix(".bin")):
            path.unlink()
        outcomes = {each.uuid: change(at, outcome) for at, (each, outcome) in enumerate(plain)}
        files.write(2, "train", [each for each, _ in plain], outcomes)
        return proven(pairs)

    assert said(lambda at, outcome: outcome).ok
    moved = said(lambda at, outcome: replace(outcome, reference_gap=outcome.reference_gap + np.float32(at == 0)))
    assert {wrong.step for wrong in moved.wrong_steps} == {2} and "the credit of episode" in moved.wrong_steps[0].what
    for taken in (1, len(plain)):
        lost = said(
            lambda at, outcome, n=taken: replace(outcome, reference_gap=outcome.reference_gap if at >= n else None)
        )
        assert [wrong.what for wrong in lost.wrong_steps] == [
            f"the log-probabilities of policy and reference model of episode {plain[0][0].uuid} are not in the record"
        ]
