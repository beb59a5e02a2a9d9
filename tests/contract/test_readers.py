"""One suite over every TaskReader, a user's own among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ajet.config import Experiment
from ajet.config.plugins import find_parts
from ajet.schema.errors import ConfigError, TaskError
from ajet.schema.task import Task
from ajet.task_reader import OpenedReader, TaskReader, open_reader

pytestmark = pytest.mark.slow

OWN = """
from ajet import Task

class Own:
    judge = None
    def __init__(self, config):
        self.count = 5
    def tasks(self, split):
        return [Task(task_id=f"{split}-{n}", main_query=f"question {n}") for n in range(self.count)]
"""
BENCHMARKS = ("gsm8k", "math", "gaia", "hotpotqa")
KINDS = ("jsonl_dataset_file", "agentrl", "huggingface_dat_repo", "random_dummy", "reasoning_gym", *BENCHMARKS, "own")


def published(kind: str, n: int, split: str) -> dict[str, Any]:
    """A row of invented content in the shape in which a benchmark is published."""
    asked, right = f"What is {n} + {n}?", str(2 * n)
    return {
        "gsm8k": {"question": asked, "answer": f"It is {n} and {n} again.\n#### {right}"},
        "math": {"problem": asked, "level": "Level 1", "type": "Algebra", "solution": f"So \\boxed{{{right}}}."},
        "gaia": {"task_id": f"{split}-{n}", "Question": asked, "Level": 1, "Final answer": right, "file_name": ""},
        "hotpotqa": {"_id": f"{split}-{n}", "question": asked, "answer": right, "type": "bridge", "level": "easy",
                     "supporting_facts": [["Sums", 0]], "context": [["Sums", [f"{n} and {n}", f" make {right}."]]]},
    }.get(kind, {"question": asked, "answer": right})  # fmt: skip


def section(kind: str, folder: Path) -> dict[str, Any]:
    """`task_reader` with five training tasks and two of validation, in `folder`."""
    for split, count in (("train", 5), ("test", 2)):
        rows = [published(kind, n, split) for n in range(count)]
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "own.py").write_text(OWN)
    files = {"training": {"file_path": "data/train.jsonl"}, "validation": {"file_path": "data/test.jsonl"}}
    data = {"dataset_path": "data", "training_split": "train", "validation_split": "test"}
    sizes = {"size": 5, "validation_size": 2}
    return {
        "jsonl_dataset_file": {"jsonl_dataset_file": files},
        "agentrl": {"agentrl": files},
        "huggingface_dat_repo": {"huggingface_dat_repo": data},
        "random_dummy": {"random_dummy": sizes},
        "reasoning_gym": {"reasoning_gym": {"dataset": "chain_sum", "seed": 3, **sizes}},
        **{name: {name: files} for name in BENCHMARKS},
        "own": {},
    }[kind] | {"type": "own.py->Own" if kind == "own" else kind}


@pytest.fixture(params=KINDS)
def experiment(request: pytest.FixtureRequest, tmp_path: Path) -> Experiment:
    return Experiment.from_dict({"ajet": {"task_reader": section(request.param, tmp_path)}}, base=tmp_path)


@pytest.fixture
def reader(experiment: Experiment) -> OpenedReader:
    return open_reader(experiment)


def plain(tasks: Any) -> list[dict[str, Any]]:
    return [task.model_dump() for task in tasks]


def test_no_reader_is_left_out() -> None:
    elsewhere = {
        "env_service",
        "data_generation",
        "tracing",
        "harbor",
    }  # test_env_service.py, test_generation.py, test_tracing.py, test_harbor_task.py
    assert {name for name, part in find_parts("reader").items() if part.code} - elsewhere == set(KINDS) - {"own"}


def test_it_is_a_task_reader(reader: OpenedReader) -> None:
    assert isinstance(reader, TaskReader) and isinstance(reader._reader, TaskReader)


def test_each_task_says_what_it_is_and_has_an_id_of_its_own(reader: OpenedReader) -> None:
    tasks = reader.tasks("train")
    assert len(tasks) == 5 and all(isinstance(task, Task) for task in tasks)
    assert len({task.task_id for task in tasks}) == 5
    assert all(task.main_query or task.init_messages or task.metadata for task in tasks)


def test_reading_again_gives_the_same_tasks_in_the_same_order(reader: OpenedReader, experiment: Experiment) -> None:
    again = open_reader(experiment)
    assert plain(reader.tasks("train")) == plain(again.tasks("train"))
    assert plain(reader.tasks("validation")) == plain(again.tasks("validation"))


def test_the_splits_share_no_id(reader: OpenedReader) -> None:
    assert reader.has("train") and reader.has("validation")
    if type(reader._reader).__name__ in (
        "JsonlReader",
        "AgentrlReader",
        "HuggingFaceReader",
        "Gsm8kReader",
        "MathReader",
    ):
        return  # two files of the user's own: what they share is the user's to say
    train, validation = ({task.task_id for task in reader.tasks(split)} for split in ("train", "validation"))
    assert not train & validation


def test_what_is_done_to_a_task_is_done_to_no_other(reader: OpenedReader) -> None:
    first, second = reader.tasks("train")[:2]
    before = second.model_dump()
    first.metadata["changed"] = True
    assert second.model_dump() == before


def test_tasks_can_be_written_and_read(reader: OpenedReader) -> None:
    for task in reader.tasks("train"):
        assert Task.model_validate(json.loads(json.dumps(task.model_dump()))) == task


def test_a_judge_it_brings_can_judge(reader: OpenedReader) -> None:
    assert reader.judge is None or callable(reader.judge.compute_reward)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_without_tasks_is_an_error_that_names_it(kind: str, tmp_path: Path) -> None:
    chosen = section(kind, tmp_path)
    for path in (tmp_path / "data").iterdir():
        path.write_text("")
    (tmp_path / "own.py").write_text(OWN.replace("= 5", "= 0"))
    for name in ("random_dummy", "reasoning_gym"):
        if name in chosen:
            chosen[name] |= {"size": 0}
    with pytest.raises((TaskError, ConfigError)) as caught:
        open_reader(Experiment.from_dict({"ajet": {"task_reader": chosen}}, base=tmp_path)).tasks("train")
    assert caught.value.where
