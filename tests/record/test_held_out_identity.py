"""Which project and which code a run belongs to, and what a start with others does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ajet.commands.evaluation.models import open_target
from ajet.commands.model_card import make_card
from ajet.commands.summary import print_summary
from ajet.config import Experiment, load_experiment
from ajet.record import RunDirectory
from ajet.record.curve import held_out_course, training_course
from ajet.record.held_out import Measurement, rows_of_last_judge
from ajet.record.resume import last_judge_change
from ajet.schema.errors import UserError
from ajet_viewer.library import Library

YAML = """ajet:
  backbone: local
  model: {path: embedded:tiny-tools}
  rollout: {user_workflow: agent.py->agent}
  task_judge: {judge_protocol: judge.py->reward}
"""


def project(folder: Path, **files: str) -> Path:
    """A project with a YAML, an agent and a judge; answers the YAML."""
    folder.mkdir(parents=True)
    given = {"m.yaml": YAML, "agent.py": "def agent(task, tuner): ...\n", "judge.py": "def reward(task, output): ...\n"}
    for name, text in (given | files).items():
        (folder / name).write_text(text)
    return folder / "m.yaml"


def start(yaml: Path, root: Path, *overrides: str, **how: Any) -> RunDirectory:
    return RunDirectory.open(load_experiment(yaml, overrides=overrides, exp_dir=root), root=root, **how)


def save(run: RunDirectory, *steps: int, reward: float = 0.0) -> None:
    """Steps as the training loop leaves them, each with a validation and a checkpoint."""
    run.take_up()
    for step in steps:
        run.metrics.log(step, {"train/reward": reward}, tasks=[step])
        run.metrics.log(step, {"validation/tasks": 2, "validation/reward": reward})
        measured = Measurement({"a": (reward,), "b": (reward,)}, judge=run.metrics.judge)
        run.checkpoints.save(step, lambda folder: (folder / "model").write_bytes(b"w"), {}, measured=measured)


def identity(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())
    return found


def test_a_record_knows_its_yaml_and_its_code(tmp_path: Path) -> None:
    yaml = project(tmp_path / "p")
    with start(yaml, tmp_path / "runs") as run:
        save(run, 1)
    found = identity(run.path)
    assert found["yaml"] == str(yaml)
    assert {key: [*files] for key, files in found["code"].items()} == {
        "ajet.rollout.user_workflow": ["agent.py"],
        "ajet.task_judge.judge_protocol": ["judge.py"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, {"resume": "auto"}])
def test_changed_files_are_named_and_asked_about(tmp_path: Path, how: dict[str, Any]) -> None:
    yaml, root = project(tmp_path / "p"), tmp_path / "runs"
    with start(yaml, root) as run:
        save(run, 1, 2)
    before = (run.path / "metrics.jsonl").read_bytes()
    (yaml.parent / "judge.py").write_text("def reward(task, output): return 1\n")
    with pytest.raises(UserError) as refusal:
        start(yaml, root, **how)
    assert "judge.py (ajet.task_judge.judge_protocol)" in refusal.value.what and "agent.py" not in refusal.value.what
    assert f"--resume {run.path}" in refusal.value.do and "--fresh" in refusal.value.do
    assert (run.path / "metrics.jsonl").read_bytes() == before
    with start(yaml, root, resume=str(run.path)) as again:
        assert again.resumed is not None and again.resumed.step == 2 and again.judge_change == 2
        assert any("judge.py" in note for note in again.notes)
        save(again, 3)
    changes = identity(run.path)["changes"]
    assert [(each["step"], [*each["files"]], each["judge"]) for each in changes] == [(2, ["judge.py"], True)]
    with start(yaml, root) as once_more:  # the changed files are the run's by now
        assert once_more.judge_change is None and identity(run.path)["changes"] == changes
    with start(yaml, root, fresh=True) as fresh:
        assert identity(fresh.path)["changes"] == [] and fresh.run_id != run.run_id


def test_a_changed_agent_leaves_the_judge_as_it_was(tmp_path: Path) -> None:
    yaml, root = project(tmp_path / "p"), tmp_path / "runs"
    with start(yaml, root) as run:
        save(run, 1)
    (yaml.parent / "agent.py").write_text("def agent(task, tuner): return 1\n")
    with start(yaml, root, resume=str(run.path)) as again:
        assert again.judge_change is None and again.metrics.judge == run.metrics.judge
    assert [each["judge"] for each in identity(run.path)["changes"]] == [False]


@pytest.mark.parametrize("file", ["agent.py", "judge.py"])
def test_comments_may_change(tmp_path: Path, file: str) -> None:
    yaml, root = project(tmp_path / "p"), tmp_path / "runs"
    with start(yaml, root) as run:
        save(run, 1)
    (yaml.parent / file).write_text("# why\n\n" + (yaml.parent / file).read_text())
    with start(yaml, root) as again:
        assert again.resumed is not None and identity(run.path)["changes"] == []


def test_code_may_change_before_the_first_checkpoint(tmp_path: Path) -> None:
    yaml, root = project(tmp_path / "p"), tmp_path / "runs"
    with start(yaml, root) as run:
        run.take_up()
        run.metrics.log(1, {"train/reward": 0.0}, tasks=[1])
    (yaml.parent / "agent.py").write_text("def agent(task, tuner): return 1\n")
    with start(yaml, root) as again:
        assert again.resumed is None and again.path == run.path


def test_a_judge_of_other_settings_is_another_judge(tmp_path: Path) -> None:
    yaml, root = project(tmp_path / "p"), tmp_path / "runs"
    with start(yaml, root) as run:
        save(run, 1)
    with start(yaml, root, "task_judge.answer_schema=boxed", resume=str(run.path)) as again:
        assert again.judge_change == 1
    (change,) = identity(run.path)["changes"]
    assert change["settings"] == ["ajet.task_judge.answer_schema"] and change["judge"] and not change["files"]


def test_another_project_of_that_name_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    one, other = project(tmp_path / "a"), project(tmp_path / "b")
    with start(one, root) as run:
        save(run, 1)
    with pytest.raises(UserError) as refusal:
        start(other, root, "seed=5")  # the folder's owner is told before settings that differ
    told = str(refusal.value)
    assert str(one) in told and str(other) in told and "ajet.experiment_name" in refusal.value.do
    with pytest.raises(UserError) as unknown:
        open_target(None, other, ["latest"], exp_dir=root)
    assert str(one) in str(unknown.value) and str(other) in str(unknown.value)
    assert open_target("m", other, ["latest"], exp_dir=root)[1], "the run was named"
    with start(other, root, "experiment_name=mine") as own:
        assert own.resumed is None and own.name == "mine"
    with start(other, root, resume=str(run.path)) as known:
        assert known.resumed is not None and identity(run.path)["yaml"] == str(other)


def test_one_project_may_have_several_yamls_of_a_run(tmp_path: Path) -> None:
    yaml, root = project(tmp_path / "p"), tmp_path / "runs"
    with start(yaml, root) as run:
        save(run, 1)
    shutil.copy(yaml, yaml.with_name("longer.yaml"))
    with start(yaml.with_name("longer.yaml"), root, "experiment_name=m") as again:
        assert again.resumed is not None
    with start(run.path / "resolved.yaml", root) as recorded:
        assert recorded.resumed is not None and identity(run.path)["yaml"].endswith("longer.yaml")


def test_a_moved_project_goes_on_and_says_so(tmp_path: Path) -> None:
    yaml, root = project(tmp_path / "a"), tmp_path / "runs"
    with start(yaml, root) as run:
        save(run, 1)
    yaml.parent.rename(tmp_path / "b")
    with start(tmp_path / "b" / "m.yaml", root) as again:
        assert again.resumed is not None and sum(str(yaml) in note for note in again.notes) == 1
    with start(tmp_path / "b" / "m.yaml", root) as once_more:
        assert not any(str(yaml) in note for note in once_more.notes)


def test_a_project_copied_with_its_runs_goes_on_quietly(tmp_path: Path) -> None:
    yaml = project(tmp_path / "a")
    with start(yaml, tmp_path / "a" / "runs") as run:
        save(run, 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with start(tmp_path / "b" / "m.yaml", tmp_path / "b" / "runs") as again:
        assert again.resumed is not None and again.notes == [] and again.run_id == run.run_id


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_without_its_checkpoints_is_kept(tmp_path: Path, elsewhere: bool) -> None:
    yaml, root = project(tmp_path / "p"), tmp_path / "runs"
    more = [f"trainer_common.checkpoint_base_dir={tmp_path / 'saved'}"] if elsewhere else []
    with start(yaml, root, *more) as run:
        save(run, 1, 2, 3)
    before = (run.path / "metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "saved" if elsewhere else run.path / "checkpoints")
    (yaml.parent / "agent.py").write_text("def agent(task, tuner): return 1\n")  # nothing is left that it would change
    with start(yaml, root, *more) as again:
        assert again.resumed is None and again.run_id != run.run_id and any("m.old-1" in note for note in again.notes)
        save(again, 1)
    assert (root / "m.old-1" / "metrics.jsonl").read_bytes() == before
    assert len(again.metrics.rows()) == 2


def test_numbers_of_two_judges_are_never_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yaml, root = project(tmp_path / "p"), tmp_path / "runs"
    with start(yaml, root) as run:
        save(run, 1, 2, reward=0.125)
    (yaml.parent / "judge.py").write_text("def reward(task, output): return -5\n")
    with start(yaml, root, resume=str(run.path)) as again:
        save(again, 3, reward=-5.0)
        print_summary(again)
        ended = capsys.readouterr().out
        save(again, 4, reward=-4.5)
        print_summary(again)
    assert "→" not in ended and "0.12" not in ended
    later = capsys.readouterr().out
    assert "reward -5.00 after step 3 → reward -4.50 after step 4" in later and "0.12" not in later
    rows = again.metrics.rows()
    for course in (held_out_course(rows), training_course(rows)):
        assert [step for step, _ in course.points] == [3, 4] and "after step 2" in course.label
    newest = again.checkpoints.latest()
    assert newest is not None and "0.125" not in make_card(run.path, newest)
    best = again.checkpoints.best()
    assert best is not None and best.step >= 3, "a higher score of the earlier judge is no better one"
    summary = Library(root).run("m")
    assert "0.125" not in f"{summary['held_out']} {summary['held_out_short']}"
    assert last_judge_change(run.path) == 2


def test_rows_begin_anew_with_each_judge() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 0},
        {"step": 1, "judge": "a"},
        {"step": 2},
        {"step": 3, "judge": "b"},
        {"step": 4},
    ]
    assert rows_of_last_judge(rows) == [{"step": 2}, {"step": 3, "judge": "b"}, {"step": 4}]
    assert rows_of_last_judge(rows[:3]) == rows[:3] and rows_of_last_judge([]) == []


def test_a_run_composed_in_python_has_no_yaml(tmp_path: Path) -> None:
    tree = {"ajet": {"experiment_name": "m", "backbone": "local", "model": {"path": "embedded:tiny-tools"}}}
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        with RunDirectory.open(Experiment.from_dict(tree, base=folder), root=tmp_path / "runs") as run:
            save(run, 1)
        assert identity(run.path)["yaml"] is None
