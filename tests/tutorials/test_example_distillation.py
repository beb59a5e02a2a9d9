"""The tutorial of a teacher: the student's YAML names what the teacher's leaves, and the student comes to its score."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.schema.errors import UserError
from tests.support.ajet_process import ajet, metric_rows
from tests.support.tutorial_runs import TUTORIALS, learned

FOLDER = TUTORIALS / "example_distillation"


def test_the_student_learns_from_what_the_teachers_run_leaves() -> None:
    taught, student = (load_experiment(FOLDER / name) for name in ("teacher.yaml", "distillation.yaml"))
    for each in (taught, student):
        each.require_ready()
    left = taught.config.ajet
    said = student.config.ajet.trainer_common.algorithm.teacher.path
    assert said == f"launcher_record/{left.experiment_name}/checkpoints/step-{left.trainer_common.total_training_steps}"
    assert len(resolve_reference(student.config.ajet.task_reader.type, base=FOLDER)(None).tasks("validation")) == 64


@pytest.mark.slow
def test_a_student_before_its_teacher_is_told_what_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ajet.backbone import open_teacher

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="There is no model at 'launcher_record/shop_teacher") as caught:
        open_teacher(load_experiment(FOLDER / "distillation.yaml"), None)
    assert (
        caught.value.where == "ajet.trainer_common.algorithm.teacher.path"
        and "finish that run first" in caught.value.do
    )


@pytest.mark.extra_slow
def test_the_student_comes_to_its_teachers_score(tmp_path: Path) -> None:
    done = ajet("sft", "--conf", str(FOLDER / "teacher.yaml"), "trainer_common.threads=1", cwd=tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout
    held_out, rewards = learned(FOLDER / "distillation.yaml", tmp_path, "shop_distilled")
    assert held_out[0] < 0.2 and held_out[-1] > 0.8 and sum(rewards[-6:]) > sum(rewards[:6]) + 2, (held_out, rewards)
    rows = metric_rows(tmp_path / "launcher_record" / "shop_distilled")
    apart = [row["distillation/reverse_kl"] for row in rows if "distillation/reverse_kl" in row]
    assert sum(apart[-6:]) < sum(apart[:6]) / 3, apart
