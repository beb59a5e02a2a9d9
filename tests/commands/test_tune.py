"""`ajet.tune` before the run: what its arguments make of an experiment, and what is refused."""

from __future__ import annotations

import csv
import errno
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ajet
from ajet import Task
from ajet.commands import launch
from ajet.config import Experiment, resolve_reference
from ajet.schema.errors import ConfigError, TaskError, UnresolvedReferenceError, UserError
from ajet.task_reader import open_reader

TUNE: dict[str, Any] = {"agent": "agent.py->agent", "reward": "agent.py->reward", "model": "embedded:tiny-tools"}


class Stopped(Exception):
    """What would have been launched."""


@pytest.fixture
def composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """The experiment that `tune` would launch with these arguments."""

    def stop(experiment: Experiment, options: Any) -> None:
        raise Stopped(experiment)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "run_experiment", stop)

    def made(**arguments: Any) -> Experiment:
        with pytest.raises(Stopped) as stopped:
            ajet.tune(**TUNE | arguments)
        experiment: Experiment = stopped.value.args[0]
        return experiment

    return made


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function of the running program."""

    def agent(task: Any, tuner: Any) -> str:
        return "yes"

    agent.__module__, agent.__qualname__ = "__main__", "agent"
    monkeypatch.setattr(sys.modules["__main__"], "agent", agent, raising=False)
    yield agent


def test_tasks_as_python_has_them_are_read_as_from_a_file(composed: Callable[..., Experiment]) -> None:
    given = [
        Task(main_query="a", task_id="own", metadata={"answer": "1", "名": [2]}),
        {"question": "b", "answer": 3},
        "c",
    ]
    experiment = composed(tasks=iter(given), validation=["d"], name="mine")
    reader = open_reader(experiment)
    first, second, third = reader.tasks("train")
    assert first == given[0]
    assert (second.main_query, second.metadata["answer"], third.main_query) == ("b", 3, "c")
    assert [task.main_query for task in reader.tasks("validation")] == ["d"]
    assert sorted(path.name for path in experiment.root.iterdir()) == ["mine.tasks.jsonl", "mine.validation.jsonl"]


ROWS = [{"question": "a", "answer": "1"}, {"question": "b", "answer": None}]


def as_frame() -> Any:
    import pandas

    return pandas.DataFrame([{"question": "a", "answer": "1"}, {"question": "b", "answer": float("nan")}])


def as_dataset() -> Any:
    import datasets

    return datasets.Dataset.from_list(ROWS)


def as_split() -> Any:
    import datasets

    return datasets.DatasetDict({"train": as_dataset()})["train"].with_format("numpy")


def as_table() -> Any:
    import pyarrow

    return pyarrow.Table.from_pylist(ROWS)


def as_csv_reader() -> Any:
    return csv.DictReader(io.StringIO("\ufeffQuestion,answer\na,1\nb,\n"))


@pytest.mark.parametrize(
    "make",
    [
        as_frame,
        as_dataset,
        as_split,
        lambda: as_dataset().to_iterable_dataset(),
        as_table,
        as_csv_reader,
        lambda: iter(ROWS),
        lambda: (row for row in ROWS),
        lambda: tuple(ROWS),
        lambda: as_frame().question,
        lambda: np.array(["a", "b"]),
        lambda: map(str, "ab"),
    ],
)
def test_tables_and_iterators_become_rows(composed: Callable[..., Experiment], make: Callable[[], Any]) -> None:
    reader = open_reader(composed(tasks=make(), validation=make()))
    for split in ("train", "validation"):
        first, second = reader.tasks(split)  # type: ignore[arg-type]
        assert (first.main_query, second.main_query) == ("a", "b")
        assert first.metadata.get("answer") in ("1", None) and not second.metadata.get("answer")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl", "tsv"])
def test_files_may_be_of_two_kinds(composed: Callable[..., Experiment], ending: str) -> None:
    frame = as_frame()
    if ending == "parquet":
        frame.to_parquet("t.parquet")
    elif ending == "jsonl":
        frame.to_json("t.jsonl", orient="records", lines=True)
    else:
        frame.to_csv(f"t.{ending}", index=False, sep=";" if ending == "csv" else "\t")
    Path("held.csv").write_text("Question\nc\n")
    for held in ("held.csv", Path("held.csv"), ["c"]):
        reader = open_reader(composed(tasks=f"t.{ending}", validation=held))
        assert [task.main_query for task in reader.tasks("train")] == ["a", "b"]
        assert [task.main_query for task in reader.tasks("validation")] == ["c"]
    assert len(open_reader(composed(tasks=Path(f"t.{ending}"))).tasks("train")) == 2


@pytest.mark.parametrize(
    ("make", "do"),
    [
        (lambda: {"question": ["a", "b"], "answer": ["1", "2"]}, "zip(*data.values())"),
        (lambda: {"question": "a", "answer": "1"}, "tasks=[row]"),
        (lambda: __import__("datasets").DatasetDict({"train": as_dataset()}), "tasks=data['train']"),
        (lambda: {"train": as_frame()}, "tasks=data['train']"),
        (lambda: {"a", "b"}, "sorted"),
        (lambda: {"question": 1}.keys(), "sorted"),
        (lambda: io.StringIO("a"), "train.jsonl"),
        (lambda: b"a", "train.jsonl"),
        (lambda: 5, "tasks=["),
        (lambda: "What is 1.5 + 2?", "tasks=['What is 1.5 + 2?']"),
        (lambda: "Add 1/2 and 1/3. " * 40, "tasks=["),
    ],
)
def test_what_only_iterates_is_refused_by_name(
    composed: Callable[..., Experiment], make: Callable[[], Any], do: str
) -> None:
    with pytest.raises(TaskError) as refused:
        ajet.tune(**TUNE, tasks=make())
    assert do in refused.value.do and refused.value.where == "tasks"


@pytest.mark.parametrize(
    "task", [["a", "b"], ("question", "a"), {"answer": float("nan")}, as_frame], ids=["list", "pair", "nan", "function"]
)
def test_elements_that_are_no_tasks_are_named(composed: Callable[..., Experiment], task: Any) -> None:
    with pytest.raises(TaskError) as refused:
        ajet.tune(**TUNE, tasks=["a", task])
    assert refused.value.where == "tasks[1]"


def test_a_spreadsheet_is_refused_by_name(composed: Callable[..., Experiment]) -> None:
    Path("t.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(TaskError, match="spreadsheet"):
        ajet.tune(**TUNE, tasks="t.xlsx")


def test_settings_of_the_reader_win(composed: Callable[..., Experiment]) -> None:
    settings = {"task_reader.columns.main_query": "ask", "task_reader.on_bad_row": "skip"}
    reader = open_reader(composed(tasks=[{"ask": "a"}, {"ask": ""}], settings=settings))
    assert [task.main_query for task in reader.tasks("train")] == ["a"]
    wanted = {"task_reader.require_question": False}
    (task,) = open_reader(composed(tasks=[Task(metadata={"goal": 3})], settings=wanted)).tasks("train")
    assert task.metadata == {"goal": 3}


@pytest.mark.slow
def test_what_is_named_is_taken_from_where_it_is(composed: Callable[..., Experiment]) -> None:
    reader = composed(tasks=Path("train.jsonl"), validation="held_out.jsonl").ajet.task_reader
    files = reader.jsonl_dataset_file
    assert (files.training.file_path, files.validation.file_path) == ("train.jsonl", "held_out.jsonl")
    hub = composed(tasks="gsm8k/main", validation="test").ajet.task_reader
    assert hub.type == "huggingface_dat_repo"
    assert (hub.huggingface_dat_repo.dataset_path, hub.huggingface_dat_repo.validation_split) == ("gsm8k/main", "test")
    table = composed(tasks="train.csv").ajet.task_reader.huggingface_dat_repo
    assert (table.dataset_path, table.validation_split) == ("train.csv", None), "none of it is held out unasked"
    assert composed(tasks="sums.py->Sums").ajet.task_reader.type == "sums.py->Sums"


def test_every_other_key_is_a_setting(composed: Callable[..., Experiment]) -> None:
    settings = {"rollout.num_repeat": 8, "ajet.trainer_common.optim.lr": 1e-4}
    ajet = composed(tasks=["a"], steps=3, backbone="debug", settings=settings).ajet
    assert (ajet.rollout.num_repeat, ajet.trainer_common.optim.lr, ajet.backbone) == (8, 1e-4, "debug")
    assert ajet.trainer_common.total_training_steps == 3
    assert (ajet.rollout.user_workflow, ajet.task_judge.judge_protocol) == ("agent.py->agent", "agent.py->reward")


@pytest.mark.parametrize("task", [1, {"question": "a", "answer": {1}}, object()], ids=["number", "set", "object"])
def test_a_task_that_cannot_be_written_down_is_named(composed: Callable[..., Experiment], task: Any) -> None:
    with pytest.raises(TaskError) as refused:
        ajet.tune(**TUNE, tasks=["a", task])
    assert refused.value.where == "tasks[1]"


def test_no_tasks_are_none_whoever_reads_them(composed: Callable[..., Experiment]) -> None:
    for more in ({"tasks": []}, {"tasks": ["a"], "validation": []}):
        with pytest.raises(TaskError, match="The list of tasks is empty") as refused:
            ajet.tune(**{**TUNE, **more})
        assert refused.value.where == next(name for name, tasks in more.items() if not tasks)


@pytest.mark.parametrize("tasks", ["gsm8k/main", "sums.py->Sums"])
def test_held_out_tasks_that_nobody_would_read_are_refused(composed: Callable[..., Experiment], tasks: str) -> None:
    with pytest.raises(UserError, match="cannot be set separately"):
        ajet.tune(**TUNE, tasks=tasks, validation=["a"])


def test_a_function_of_the_program_is_found_there_and_nowhere_else(
    composed: Callable[..., Experiment], live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = composed(agent=live, tasks=["a"]).ajet.rollout.user_workflow
    assert reference == "__main__->agent"
    assert resolve_reference(reference, base=Path("/")) is live
    monkeypatch.delattr(sys.modules["__main__"], "agent")
    with pytest.raises(UnresolvedReferenceError, match="in the running program"):
        resolve_reference(reference, base=Path("/"))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (
            {"settings": {"rollout.isolation": "process"}},
            "the processes of rollout.isolation: process cannot import it",
        ),
        ({"backbone": "verl"}, "the processes of verl cannot import it"),
    ],
)
def test_where_other_processes_need_it_it_is_refused_before_the_run(
    composed: Callable[..., Experiment], live: Any, arguments: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError, match=f"agent is defined in the running program.*{what}"):
        composed(agent=live, tasks=["a"], **arguments).require_ready()


def test_a_function_whose_name_means_another_by_now_is_refused(
    composed: Callable[..., Experiment], live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "agent", lambda task, tuner: "no")
    with pytest.raises(UserError, match="agent cannot be named by a reference"):
        ajet.tune(**TUNE | {"agent": live}, tasks=["a"])


def test_what_no_reference_can_name_is_refused(composed: Callable[..., Experiment]) -> None:
    with pytest.raises(UserError, match="cannot be named by a reference"):
        ajet.tune(**TUNE | {"agent": lambda task, tuner: "yes"}, tasks=["a"])


def test_a_list_of_rewards_names_the_scorers(composed: Callable[..., Experiment]) -> None:
    with pytest.raises(UserError, match="a list of 2 entries") as refused:
        ajet.tune(**TUNE | {"reward": [len, len]}, tasks=["a"])
    assert "task_judge.scorers" in refused.value.do


def test_tasks_that_cannot_be_written_down_are_one_error(composed, monkeypatch):
    monkeypatch.setattr("ajet.record.files.write_atomically", _refuses)
    with pytest.raises(UserError, match="read-only: the tasks could not be written"):
        ajet.tune(**TUNE, tasks=["1 + 1?"])


def _refuses(*_: Any, **__: Any) -> None:
    raise OSError(errno.EROFS, "Read-only file system")
