"""What a plan that is valid and cannot work is told before it costs anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ajet.algorithm import open_algorithm
from ajet.cli import launcher
from ajet.config import Experiment
from ajet.schema.errors import ConfigError
from ajet.task_reader.contamination import TaskOverlap
from ajet.train.remarks import format_remarks, review_overlap, review_settings, review_tasks
from ajet.workflow import Workflow
from ajet.workflow.function import as_workflow


def experiment(backbone: str = "local", **sections: Any) -> Experiment:
    return Experiment.from_dict({"ajet": {"backbone": backbone, **sections}}, base=Path.cwd())


def keys(backbone: str = "local", **sections: Any) -> list[str]:
    made = experiment(backbone, **sections)
    return [each.key for each in review_settings(made.ajet, open_algorithm(made.ajet))]


RATE = "trainer_common.optim.lr"


@pytest.mark.parametrize(
    ("sections", "found"),
    [
        ({}, []),
        ({"rollout": {"num_repeat": 1}}, ["rollout.num_repeat"]),
        ({"trainer_common": {"optim": {"lr": 0}}}, [RATE]),
        ({"trainer_common": {"optim": {"lr": 0.1}}}, [RATE]),
        ({"trainer_common": {"optim": {"lr": 5e-3}, "lora": {"rank": 8}}}, []),
        ({"trainer_common": {"optim": {"lr": 1e-3}}}, []),
        ({"rollout": {"max_model_len": 3000}}, ["rollout.max_model_len"]),
        ({"rollout": {"max_model_len": 2000}, "data": {"max_prompt_length": 1000}}, []),
        ({"data": {"train_batch_size": 6}, "trainer_common": {"mini_batch_num": 4}}, ["trainer_common.mini_batch_num"]),
        ({"data": {"train_batch_size": 8}, "trainer_common": {"mini_batch_num": 4}}, []),
    ],
)
def test_settings_that_cannot_do_what_a_training_is_for(sections: dict[str, Any], found: list[str]) -> None:
    assert keys(**sections) == found
    assert keys("debug", **sections) == [], "nothing is trained there"


def test_what_compares_no_attempts_needs_no_group() -> None:
    own = {"trainer_common": {"algorithm": {"adv_estimator": "reinforce_plus_plus"}}}
    assert keys(rollout={"num_repeat": 1}, **own) == []


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus"])
def test_what_is_drawn_at_temperature_0_cannot_be_trained_on(estimator: str) -> None:
    """The update divides the logits by it: every step would be skipped."""
    own = {"trainer_common": {"algorithm": {"adv_estimator": estimator}}, "rollout": {"temperature": 0}}
    with pytest.raises(ConfigError, match="temperature above 0") as refused:
        keys(**own)
    assert refused.value.where == "ajet.rollout.temperature"
    assert keys("debug", **own) == [] == keys(sft={"objective": "sft"}, **own)


def test_of_a_file_whose_every_split_is_all_rows_it_is_said_how_to_split_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("question,answer\nq,1\n")
    known = TaskOverlap(("a",), (), (), trained=1, held_out=1)
    for path, said in (("t.csv", True), ("org/name", False)):
        reader = {"type": "huggingface_dat_repo", "huggingface_dat_repo": {"dataset_path": path}}
        made = Experiment.from_dict({"ajet": {"backbone": "local", "task_reader": reader}}, base=tmp_path)
        (remark,) = review_overlap(made, known)
        assert ("validation_split: null" in remark.do) is said and list(review_overlap(made, None)) == []


class Rewards(Workflow):
    """Gives its own reward."""


def of_tasks(train: int = 8, validates: bool = False, **more: Any) -> list[str]:
    sections = {"data": {"train_batch_size": 8}, "trainer_common": more.pop("trainer", {})}
    made = experiment(more.pop("backbone", "local"), **sections)
    return [each.key for each in review_tasks(made, train=train, validates=validates, **more)]


def test_tasks_that_do_not_fit_the_plan() -> None:
    assert of_tasks() == [], "that there is a default for it asks for no validation"
    assert of_tasks(train=1) == of_tasks(train=7) == ["data.train_batch_size"]
    assert of_tasks(trainer={"test_freq": 2}) == ["trainer_common.test_freq"]
    assert of_tasks(trainer={"val_before_train": True}) == ["trainer_common.val_before_train"]
    assert of_tasks(backbone="trinity", trainer={"test_freq": 2}) == [], "it plays none, whatever the reader has"
    assert of_tasks(trainer={"test_freq": 2, "val_before_train": True}, validates=True) == []


def test_a_workflow_that_nobody_rewards(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from ajet import Workflow, WorkflowOutput\n\nclass Flow(Workflow):\n"
        "    async def execute(self, task, tuner):\n        return WorkflowOutput()\n\n"
        "def number(task, tuner):\n    return 1.0\n"
    )
    from ajet.config import resolve_reference

    flow = resolve_reference("flow.py->Flow", base=tmp_path)
    assert of_tasks(workflow=flow) == ["task_judge.judge_protocol"]
    number = as_workflow(resolve_reference("flow.py->number", base=tmp_path), "flow.py->number")
    assert of_tasks(workflow=number) == [], "a function may return its reward"
    assert of_tasks(workflow=Rewards) == []


def test_each_line_names_key_place_and_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flow.py").write_text("class Flow: ...\n")
    yaml = tmp_path / "x.yaml"
    yaml.write_text(
        "ajet:\n  model: {path: embedded:tiny-tools}\n  task_reader: {type: random_dummy}\n"
        "  rollout:\n    user_workflow: flow.py->Flow\n    num_repeat: 1\n"
    )
    with pytest.raises(SystemExit):
        launcher.main(["config", "validate", "--conf", str(yaml), "--backbone", "local"])
    said = capsys.readouterr().out
    assert "is valid." in said and f"ajet.rollout.num_repeat ({yaml}:6" in said
    assert "no token gets an advantage. Expected: 4 or more" in said
    made = experiment()
    assert format_remarks([], made) == ""
