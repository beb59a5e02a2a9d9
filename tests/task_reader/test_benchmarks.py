"""Benchmarks as they are published, from local copies of invented rows: shapes, splits, scorers, mistakes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ajet.commands.plan import require_present
from ajet.config import Experiment
from ajet.schema.errors import TaskError, UserError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge import open_judge
from ajet.task_reader import open_reader
from ajet.task_reader.benchmarks import find_boxed

SOLVED = {"question": "How many legs have two cats?", "answer": "Two cats, <<2*4=8>>8 legs.\n#### 1,008"}
PROBLEM = {"problem": "What is half of $1$?", "level": "Level 2", "type": "Algebra",
           "solution": "We have $x=2$ at first, then $\\boxed{\\frac{1}{2}}$."}  # fmt: skip
ASKED = {"task_id": "a-1", "Question": "What is in the table?", "Level": 2, "Final answer": "12, cows",
         "file_name": "a.csv", "Annotator Metadata": {"Steps": "1. look"}}  # fmt: skip
HOP = {"_id": "h1", "question": "Who rowed?", "answer": "The Miller", "type": "comparison", "level": "hard",
       "supporting_facts": [["Boats", 0]],
       "context": [["Boats", ["A miller rowed.", " It rained."]], ["Rain", ["Wet."]]]}  # fmt: skip


def of(folder: Path, kind: str, path: str, **more: Any) -> Experiment:
    settings = {"type": kind, kind: {"training": {"file_path": path}, **more.pop("keys", {})}, **more.pop("reader", {})}
    return Experiment.from_dict({"ajet": {"task_reader": settings, **more}}, base=folder)


def tasks(folder: Path, kind: str, path: str, **more: Any) -> list[Task]:
    return list(open_reader(of(folder, kind, path, **more)).tasks("train"))


def lines(path: Path, *rows: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.name


def parquet(path: Path, *rows: dict[str, Any]) -> None:
    import pyarrow
    from pyarrow.parquet import write_table

    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(pyarrow.Table.from_pylist(list(rows)), path)


def reward(experiment: Experiment, task: Task, answer: str) -> float | None:
    told = WorkflowTask(task=task, task_id=task.task_id)
    output = WorkflowOutput(metadata={"final_answer": answer})
    return asyncio.run(open_judge(experiment).verdict(told, output)).reward


def test_gsm8k_by_lines_and_by_the_hubs_parquet(tmp_path):
    """As OpenAI's repository has it (train.jsonl), and as the hub does (main/train-….parquet)."""
    lines(tmp_path / "grade" / "train.jsonl", SOLVED, {"question": "And three?"})
    lines(tmp_path / "grade" / "test.jsonl", {"question": "Of four?", "answer": "#### 16"})
    parquet(tmp_path / "hub" / "main" / "train-00000-of-00001.parquet", SOLVED)
    experiment = of(tmp_path, "gsm8k", "grade/train")
    first, without = open_reader(experiment).tasks("train")
    assert (first.main_query, first.metadata["answer"]) == (SOLVED["question"], "1008")
    assert first.metadata["solution"] == SOLVED["answer"] and "answer" not in without.metadata
    assert [reward(experiment, task, "\\boxed{1008}") for task in (first, without)] == [1.0, None]
    assert tasks(tmp_path, "gsm8k", "hub/train") == [first], "the same row"
    assert [each.metadata["answer"] for each in tasks(tmp_path, "gsm8k", "grade/test")] == ["16"]
    with pytest.raises(TaskError, match="several splits") as caught:
        tasks(tmp_path, "gsm8k", "grade")
    assert caught.value.expected == "one of train, test"
    other = of(tmp_path, "gsm8k", "grade/train", task_judge={"scorer": "exact"})
    assert (reward(other, first, "1008.0"), reward(experiment, first, "1008.0")) == (0.0, 1.0), "the YAML's wins"


def test_math_by_folders_of_problems_and_by_lines(tmp_path):
    unsolved = {"problem": "Draw.", "level": "Level 1", "type": "Geometry"}
    for name, row in (("algebra/7", PROBLEM), ("geometry/1", unsolved)):
        (tmp_path / "MATH/train" / name).parent.mkdir(parents=True)
        (tmp_path / f"MATH/train/{name}.json").write_text(json.dumps(row))
    (tmp_path / "MATH/test").mkdir()
    experiment = of(tmp_path, "math", "MATH/train")
    first, without = open_reader(experiment).tasks("train")
    assert (first.task_id, first.metadata["answer"]) == ("train/algebra/7", "\\frac{1}{2}")
    assert first.metadata["tags"] == ["Algebra", "Level 2"] and "answer" not in without.metadata
    assert [reward(experiment, first, said) for said in ("\\boxed{0.5}", "\\boxed{2}")] == [1.0, 0.0]
    row = {
        "problem": "p",
        "solution": "s \\boxed{9}",
        "answer": "9",
        "subject": "Knots",
        "level": 5,
        "unique_id": "u/1",
    }
    lines(tmp_path / "math500.jsonl", row)
    (fifth,) = tasks(tmp_path, "math", "math500.jsonl")
    assert (fifth.task_id, fifth.metadata["answer"], fifth.metadata["tags"]) == (
        "u/1",
        "9",
        ["Knots", "Level 5"],
    )


@pytest.mark.parametrize("solution, answer", [
    ("\\boxed{1} then \\fbox{2}", "2"), ("so $\\boxed 3$.", "3"), ("\\boxed{\\text{a {b}}}", "\\text{a {b}}"),
    ("none", None), ("\\boxed{open", None), ("\\boxed{}", None),
])  # fmt: skip
def test_the_last_box_is_the_answer(solution, answer):
    assert find_boxed(solution) == answer


def test_a_solution_read_as_an_answer_is_compared_by_its_last_box(tmp_path):
    """MATH's rows in a file of a reader that knows nothing of MATH."""
    name = lines(tmp_path / "rows.jsonl", PROBLEM)
    for judge in ({"scorer": "math"}, {"judge_protocol": "ajet.task_judge.math_judge->MathAnswerJudge"}):
        experiment = of(tmp_path, "jsonl_dataset_file", name, task_judge=judge)
        (task,) = open_reader(experiment).tasks("train")
        assert [reward(experiment, task, said) for said in ("\\boxed{0.5}", "\\boxed{2}")] == [1.0, 0.0]


def test_gaia_names_its_file_where_the_environment_has_it(tmp_path):
    folder = tmp_path / "gaia/2023/validation"
    lines(folder / "metadata.jsonl", ASKED, {**ASKED, "task_id": "a-2", "file_name": "", "Final answer": "?"})
    (folder / "a.csv").write_text("cows,12\n")
    experiment = of(tmp_path, "gaia", "gaia/2023/validation")
    first, second = open_reader(experiment).tasks("train")
    assert first.main_query.endswith(f"The file that belongs to this task: {folder / 'a.csv'}")
    assert (first.task_id, first.metadata["file_path"]) == ("a-1", str(folder / "a.csv"))
    assert first.metadata["tags"] == ["Level 2"] and second.main_query == ASKED["Question"]
    assert [reward(experiment, task, "<answer>12,cows</answer>") for task in (first, second)] == [1.0, None]
    elsewhere = {"keys": {"files_at": "/root/workspace/gaia"}}
    (folder / "a.csv").unlink()
    there, _ = tasks(tmp_path, "gaia", "gaia/2023/validation", **elsewhere)
    assert there.main_query.endswith(": /root/workspace/gaia/a.csv")
    with pytest.raises(TaskError, match=r"its file a.csv is not in the folder.*files_at") as caught:
        tasks(tmp_path, "gaia", "gaia/2023/validation")
    assert caught.value.where == f"{folder / 'metadata.jsonl'}:1"


def test_gaia_as_the_hub_has_it_now_is_read_once(tmp_path):
    """The same rows stand in one file and in one a level, beside the tasks' own files."""
    folder = tmp_path / "gaia/2023/validation"
    rows = [{**ASKED, "task_id": f"a-{level}", "Level": str(level), "file_name": ""} for level in (1, 2)]
    for name, held in (("metadata", rows), ("metadata.level1", rows[:1]), ("metadata.level2", rows[1:])):
        parquet(folder / f"{name}.parquet", *held)
    lines(folder / "9f0c.json", {"a task's own": "file"})
    found = tasks(tmp_path, "gaia", "gaia/2023/validation")
    assert [(task.task_id, task.metadata["tags"]) for task in found] == [("a-1", ["Level 1"]), ("a-2", ["Level 2"])]
    (folder / "metadata.parquet").unlink()
    assert [task.task_id for task in tasks(tmp_path, "gaia", "gaia/2023/validation")] == ["a-1", "a-2"]


def test_hotpotqa_alone_and_with_its_paragraphs_in_both_shapes(tmp_path):
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps([HOP]))
    context = {"title": ["Boats", "Rain"], "sentences": [each[1] for each in HOP["context"]]}
    facts = {"title": ["Boats"], "sent_id": [0]}
    hubs = {**{k: v for k, v in HOP.items() if k != "_id"}, "id": "h1", "context": context, "supporting_facts": facts}
    parquet(tmp_path / "hub/distractor/validation-0.parquet", hubs)
    experiment = of(tmp_path, "hotpotqa", "hotpot_dev_distractor_v1.json")
    (task,) = open_reader(experiment).tasks("train")
    assert (task.task_id, task.main_query) == ("h1", "Who rowed?") and "context" not in task.metadata
    assert task.metadata["tags"] == ["comparison", "hard"]
    assert [reward(experiment, task, said) for said in ("Miller!", "a miller and a cook")] == [1.0, 0.5]
    told = [tasks(tmp_path, "hotpotqa", path, keys={"context": True})[0].main_query
            for path in ("hotpot_dev_distractor_v1.json", "hub/validation")]  # fmt: skip
    assert told[0] == told[1] == "Boats\nA miller rowed. It rained.\n\nRain\nWet.\n\nQuestion: Who rowed?"


@pytest.mark.parametrize("kind, name, text, said, where", [
    ("gsm8k", "a.jsonl", json.dumps(SOLVED) + '\n{"question": "q", "answer": "8"}\n', "no ####", "a.jsonl:2"),
    ("gsm8k", "a.jsonl", '{"question": "q", "answer"\n', "not valid JSON", "a.jsonl:1"),
    ("math", "a.jsonl", '{"problem": "p", "solution": "8"}', "no \\boxed", "a.jsonl:1"),
    ("gaia", "a.jsonl", '{"query": "q"}', "no Question; its keys are query", "a.jsonl:1"),
    ("hotpotqa", "a.json", '[{"question": "q"}, {"question": 3}]', "its question is int", "a.json, row 1"),
    ("hotpotqa", "a.json", '[{"question": "q"},\n]', "The file is not valid JSON", "a.json:2"),
])  # fmt: skip
def test_what_is_of_another_shape_is_named_by_its_line(tmp_path, kind, name, text, said, where):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as caught:
        tasks(tmp_path, kind, name)
    assert said in caught.value.what and caught.value.where.endswith(where) and caught.value.expected
    if ":2" in where and kind == "gsm8k":
        assert len(tasks(tmp_path, kind, name, reader={"on_bad_row": "skip"})) == 1
    with pytest.raises(UserError):
        require_present(of(tmp_path, kind, "gone/train"))
