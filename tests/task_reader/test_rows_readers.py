"""Task readers: rows become tasks with ids of their own; what is wrong with a source is said, with its place."""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from ajet.config import Experiment
from ajet.schema.errors import ConfigError, JudgeFailure, TaskError
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_reader import open_reader
from ajet.task_reader.hugging_face import locate_dataset
from ajet.task_reader.overlong import drop_overlong
from ajet.task_reader.registry import OpenedReader
from ajet.task_reader.rows import BadRowError, ColumnNames, assign_ids, task_of


def experiment(folder: Path, kind: str, **more: Any) -> Experiment:
    return Experiment.from_dict({"ajet": {"task_reader": {"type": kind, **more}}}, base=folder)


def jsonl(folder: Path, *lines: str | dict[str, Any], **more: Any) -> Experiment:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    (folder / "tasks.jsonl").write_text(text, encoding="utf-8")
    return experiment(
        folder, "jsonl_dataset_file", jsonl_dataset_file={"training": {"file_path": "tasks.jsonl"}}, **more
    )


# rows


def test_usual_column_names_are_found() -> None:
    for name in ("main_query", "question", "query", "prompt", "problem"):
        task = task_of({name: "How many?", "answer": "#### 4"}, ColumnNames())
        assert (task.main_query, task.metadata["answer"]) == ("How many?", "#### 4")


def test_the_whole_row_is_metadata() -> None:
    row = {"question": "q", "answer": "a", "level": 3}
    assert task_of(row, ColumnNames()).metadata == row
    row = {"main_query": "q", "task_id": "x", "metadata": {"answer": "a"}, "level": 3}
    assert task_of(row, ColumnNames()).metadata == {"answer": "a", "level": 3}


def test_columns_can_be_named() -> None:
    row = {"text": "q", "nr": 7, "reward_model": {"ground_truth": "42"}}
    task = task_of(row, ColumnNames("text", "nr", "reward_model.ground_truth"))
    assert (task.main_query, task.task_id, task.metadata["answer"]) == ("q", "7", "42")
    with pytest.raises(BadRowError, match="no column missing; the columns are text, nr, reward_model"):
        task_of(row, ColumnNames("missing"))
    for empty in (None, " "):
        with pytest.raises(BadRowError, match="no question: text is empty"):
            task_of(row | {"text": empty}, ColumnNames("text"))


def test_a_prompt_of_messages_opens_the_dialogue() -> None:
    task = task_of({"prompt": [{"role": "user", "content": "hi"}]}, ColumnNames())
    assert (task.main_query, task.init_messages) == ("", [{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({}, "no question"),
        ({"question": "  "}, "no question"),
        ({"question": 5}, "the question is int"),
        ({"question": "q", "init_messages": "hello"}, "not a list of objects with a role"),
        ({"question": "q", "env_type": 3}, "env_type is int"),
        ({"question": "q", "task_id": ["a"]}, "its task id is list"),
    ],
)
def test_bad_rows_say_why(row: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRowError, match=why):
        task_of(row, ColumnNames())


rows = st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.sampled_from(["q1", "q2", "q3"])), max_size=12)


@given(rows)
def test_ids_never_collapse_and_do_not_depend_on_the_order(pairs: list[tuple[str, str]]) -> None:
    tasks = [Task(task_id=name, main_query=query) for name, query in pairs]
    named, shared = assign_ids(tasks)
    assert len({task.task_id for task in named}) == len(tasks)
    assert all(task.task_id for task in named)
    assert [task.main_query for task in named] == [query for _, query in pairs]
    kept = [name for name, _ in pairs if name and sum(other == name for other, _ in pairs) == 1]
    assert sum(map(len, shared.values())) == sum(bool(name) for name, _ in pairs) - len(kept)
    assert set(kept) <= {task.task_id for task in named}
    backwards, _ = assign_ids(tasks[::-1])
    assert {(t.task_id, t.main_query) for t in backwards} == {(t.task_id, t.main_query) for t in named}


class Tabular:
    """A reader of a user's own, which makes tasks without a row."""

    judge = None

    def __init__(self, score: float) -> None:
        self._score = score

    def tasks(self, split: str) -> list[Task]:
        return [Task(task_id="t7", main_query="?", metadata={"cells": [1, {"score": self._score}]})]


@pytest.mark.parametrize("score", [float("nan"), float("-inf"), np.float32("nan")])
def test_a_number_that_is_not_finite_is_refused_whichever_reader_made_the_task(score: float) -> None:
    with pytest.raises(TaskError) as caught:
        OpenedReader(Tabular(score), "mine.py->Tabular").tasks("train")
    assert caught.value.where == "task 't7', metadata.cells.1.score" and "is not finite" in caught.value.what


# jsonl


def test_jsonl_reads_tasks_and_question_rows(tmp_path: Path) -> None:
    tasks = open_reader(
        jsonl(tmp_path, {"main_query": "one", "task_id": "t1"}, "", {"id": 9, "query": "два", "answer": "x"})
    ).tasks("train")
    assert [(t.task_id, t.main_query) for t in tasks] == [("t1", "one"), ("9", "два")]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"question": "x",}', "not valid JSON"),
        ("[1, 2]", "the row is a JSON list, not an object"),
        ('{"question": " "}', "no question: its text is empty"),
        ("{}", "no question and no other value"),
        ('{"question": "x", "score": NaN}', "NaN is not valid JSON"),
        ('{"question": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    made = jsonl(tmp_path, {"question": "good"}, line, {"question": "good too"})
    with pytest.raises(TaskError, match=why) as caught:
        open_reader(made).tasks("train")
    assert caught.value.where == f"{tmp_path / 'tasks.jsonl'}:2"


def test_bad_bytes_are_named(tmp_path: Path) -> None:
    made = jsonl(tmp_path, {"question": "good"})
    (tmp_path / "tasks.jsonl").write_bytes(b'\xef\xbb\xbf{"question": "a"}\n{"question": "\xff"}\n')
    with pytest.raises(TaskError, match="not UTF-8 at byte 15") as caught:
        open_reader(made).tasks("train")
    assert caught.value.where.endswith(":2")


@pytest.mark.parametrize("skip", ["error", "skip"])
@pytest.mark.parametrize(
    ("name", "data", "what", "do"),
    [
        ("t.csv", b"question,answer\nq,1\n", "format csv", "{dataset_path: t.csv}"),
        ("t.parquet", b"PAR1\x15\xff", "format parquet", "{dataset_path: t.parquet}"),
        ("t.jsonl", '{"question": "q"}\n'.encode("utf-16"), "utf-16", "iconv -f utf-16"),
        ("t.json", b'[{"question": "q"}]', "is a JSON array", "jq -c"),
    ],
)
def test_a_file_of_another_format_is_told_what_reads_it(
    tmp_path: Path, name: str, data: bytes, what: str, do: str, skip: str
) -> None:
    (tmp_path / name).write_bytes(data)
    files = {"training": {"file_path": name}}
    made = experiment(tmp_path, "jsonl_dataset_file", jsonl_dataset_file=files, on_bad_row=skip)
    with pytest.raises(TaskError, match=what) as caught:
        open_reader(made).tasks("train")
    assert do in caught.value.do


def test_bad_lines_can_be_left_out_and_are_counted(tmp_path: Path) -> None:

    made = jsonl(tmp_path, {"question": "good"}, "no", "{}", {"question": "good too"}, on_bad_row="skip")
    said: list[str] = []
    handler = logger.add(said.append, format="{message}")
    try:
        assert len(open_reader(made).tasks("train")) == 2
    finally:
        logger.remove(handler)
    assert "left out 2 of 4 rows; the first, line 2" in said[0]


def test_missing_files_and_empty_sets_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="contains no task"):
        open_reader(jsonl(tmp_path, "")).tasks("train")
    reader = open_reader(jsonl(tmp_path, {"question": "q"}))
    assert reader.has("train") and not reader.has("validation")
    with pytest.raises(TaskError, match="No file is set for the validation tasks"):
        reader.tasks("validation")
    gone = experiment(tmp_path, "jsonl_dataset_file", jsonl_dataset_file={"training": {"file_path": "gone.jsonl"}})
    with pytest.raises(TaskError, match="gone.jsonl does not exist") as caught:
        open_reader(gone).tasks("train")
    assert "jsonl_dataset_file.training.file_path" in caught.value.where


def test_doubled_ids_do_not_collapse(tmp_path: Path) -> None:
    same = {"question": "q", "id": "x"}
    tasks = open_reader(jsonl(tmp_path, same, same, {"question": "r", "id": "x"}, {"question": "s"})).tasks("train")
    ids = [task.task_id for task in tasks]
    assert len(set(ids)) == 4 and ids[1] == f"{ids[0]}-2" and all(name.startswith("x-") for name in ids[:3])
    again = open_reader(jsonl(tmp_path, same, same, {"question": "r", "id": "x"}, {"question": "s"})).tasks("train")
    assert [task.task_id for task in again] == ids


# hugging face


ROWS = [{"question": f"{i} + {i}?", "answer": f"so\n#### {2 * i}"} for i in range(5)]


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def like_the_hub(folder: Path, *, card: bool) -> Path:
    """A copy of a data set as the hub lays it out: two configurations with two splits each."""
    for config, size in (("main", 5), ("socratic", 3)):
        for split, count in (("train", size), ("test", 2)):
            parquet(folder / config / f"{split}-00000-of-00001.parquet", ROWS[:count])
    if card:
        configs = "".join(
            f"- config_name: {config}\n  data_files:\n"
            + "".join(f"  - split: {split}\n    path: {config}/{split}-*\n" for split in ("train", "test"))
            for config in ("main", "socratic")
        )
        (folder / "README.md").write_text(f"---\nlicense: mit\nconfigs:\n{configs}---\n# A set\n")
    return folder


def hub(folder: Path, path: str, **more: Any) -> Any:
    return open_reader(experiment(folder, "huggingface_dat_repo", huggingface_dat_repo={"dataset_path": path, **more}))


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("card", [True, False], ids=["card", "folders"])
def test_a_folder_laid_out_like_the_hubs(tmp_path: Path, card: bool) -> None:
    like_the_hub(tmp_path / "gsm8k", card=card)
    assert len(hub(tmp_path, "gsm8k/main").tasks("train")) == 5
    assert len(hub(tmp_path, "gsm8k/socratic").tasks("train")) == 3
    assert len(hub(tmp_path, "gsm8k", dataset_name="socratic").tasks("train")) == 3
    tasks = hub(tmp_path, "gsm8k").tasks("validation")
    assert [task.main_query for task in tasks] == ["0 + 0?", "1 + 1?"]
    assert tasks[1].metadata["answer"].endswith("#### 2")
    with pytest.raises(TaskError, match="no configuration other") as caught:
        hub(tmp_path, "gsm8k/other").tasks("train")
    assert caught.value.expected == "one of: main, socratic"
    with pytest.raises(TaskError, match="no split dev") as caught:
        hub(tmp_path, "gsm8k/main", training_split="dev").tasks("train")
    assert "train" in caught.value.expected and "test" in caught.value.expected


def test_a_set_with_several_configurations_asks_which(tmp_path: Path) -> None:
    like_the_hub(tmp_path / "own", card=True)
    with pytest.raises(TaskError, match="several configurations") as caught:
        hub(tmp_path, "own").tasks("train")
    assert "own/main" in caught.value.do


def test_splits_can_be_sliced(tmp_path: Path) -> None:
    like_the_hub(tmp_path / "gsm8k", card=True)
    assert len(hub(tmp_path, "gsm8k/main", training_split="train[:3]").tasks("train")) == 3


@pytest.mark.parametrize("form", ["parquet", "csv", "json", "jsonl"])
def test_plain_files(tmp_path: Path, form: str) -> None:
    import csv

    file = tmp_path / f"rows.{form}"
    if form == "parquet":
        parquet(file, ROWS)
    elif form == "csv":
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, ["question", "answer"])
            writer.writeheader()
            writer.writerows(ROWS)
    elif form == "json":
        file.write_text(json.dumps(ROWS))
    else:
        file.write_text("\n".join(map(json.dumps, ROWS)))
    tasks = hub(tmp_path, file.name, validation_split="train[:2]").tasks("train")
    assert [task.metadata["answer"] for task in tasks] == [row["answer"] for row in ROWS]
    assert len({task.task_id for task in tasks}) == 5
    assert len(hub(tmp_path, file.name, validation_split="train[:2]").tasks("validation")) == 2


def test_a_plain_folder_of_splits(tmp_path: Path) -> None:
    parquet(tmp_path / "own" / "data" / "train.parquet", ROWS)
    parquet(tmp_path / "own" / "data" / "test.parquet", ROWS[:1])
    assert (len(hub(tmp_path, "own").tasks("train")), len(hub(tmp_path, "own").tasks("validation"))) == (5, 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match="no data file"):
        hub(tmp_path, "empty").tasks("train")
    with pytest.raises(TaskError, match="does not exist"):
        hub(tmp_path, "./nowhere").tasks("train")


def test_broken_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    with pytest.raises(TaskError, match="cannot be read"):
        hub(tmp_path, "broken.parquet").tasks("train")


def picture(form: str = "PNG", **more: Any) -> bytes:
    """Six by four pixels, the left half red."""
    from PIL import Image

    image, file = Image.new("RGB", (6, 4), "blue"), io.BytesIO()
    image.paste("red", (0, 0, 3, 4))
    image.save(file, form, **more)
    return file.getvalue()


def unpacked(url: str) -> tuple[str, bytes]:
    head, _, data = url.partition(";base64,")
    return head.removeprefix("data:"), base64.b64decode(data, validate=True)


def image_set(file: Path, columns: dict[str, Any], **features: Any) -> None:
    """A file that says what its columns are; written without the library, which would fetch what is an address."""
    import datasets
    import pyarrow
    import pyarrow.parquet

    described = datasets.Features({"question": datasets.Value("string"), **features})
    questions = [f"what is {index}?" for index in range(len(next(iter(columns.values()))))]
    table = pyarrow.Table.from_pydict({"question": questions, **columns}, schema=described.arrow_schema)
    pyarrow.parquet.write_table(table, file)


def test_images_are_urls_of_the_same_bytes(tmp_path: Path) -> None:
    import datasets
    from PIL import Image

    one, two = picture(), picture("JPEG")
    rows = datasets.Dataset.from_dict({"question": ["a", "b"], "image": [Image.open(io.BytesIO(one)), {"bytes": two}]})
    rows.cast_column("image", datasets.Image()).to_parquet(tmp_path / "set.parquet")
    reader = hub(tmp_path, "set.parquet", validation_split="train[1:]")
    tasks = reader.tasks("train")
    assert [task.main_query for task in tasks] == ["a", "b"] and list(tasks[0].metadata) == ["question", "image"]
    assert unpacked(tasks[0].metadata["image"]) == ("image/png", one)
    assert unpacked(tasks[1].metadata["image"]) == ("image/jpeg", two)
    assert [task.metadata for task in reader.tasks("validation")] == [tasks[1].metadata]
    again = hub(tmp_path, "set.parquet").tasks("train")
    assert [task.task_id for task in again] == [task.task_id for task in tasks]
    assert json.loads(tasks[0].model_dump_json())["metadata"] == tasks[0].metadata


def test_images_within_lists_and_objects(tmp_path: Path) -> None:
    import datasets

    image, data = datasets.Image(), picture()
    stored = {"bytes": data, "path": None}
    image_set(
        tmp_path / "set.parquet",
        {"images": [[stored, stored], []], "more": [{"map": stored, "size": 3}, {"map": None, "size": 4}]},
        images=datasets.Sequence(image), more={"map": image, "size": datasets.Value("int64")},
    )  # fmt: skip
    first, second = (task.metadata for task in hub(tmp_path, "set.parquet").tasks("train"))
    assert [unpacked(url)[1] for url in first["images"]] == [data, data] and second["images"] == []
    assert unpacked(first["more"]["map"])[1] == data and first["more"]["size"] == 3
    assert second["more"] == {"map": None, "size": 4}


def test_images_of_a_parquet_that_does_not_say_so(tmp_path: Path) -> None:
    data = picture("WEBP")
    rows = [{"bytes": data, "path": "a.webp"}, {"bytes": b"RIFF\0\0\0\0WAVE", "path": "a.wav"}, None]
    sound = {"bytes": "UklGRgAAAABXQVZF", "path": "a.wav"}
    parquet(tmp_path / "set.parquet", [{"question": "q", "file": row} for row in rows])
    found = [task.metadata["file"] for task in hub(tmp_path, "set.parquet").tasks("train")]
    assert unpacked(found[0]) == ("image/webp", data) and found[1:] == [sound, None], "what is no image is base64"


def test_images_in_files_beside_their_rows(tmp_path: Path) -> None:
    folder = tmp_path / "set" / "train"
    folder.mkdir(parents=True)
    (folder / "a.jpg").write_bytes(picture("JPEG"))
    (folder / "metadata.jsonl").write_text('{"file_name": "a.jpg", "question": "what colour?"}\n')
    (task,) = hub(tmp_path, "set").tasks("train")
    assert unpacked(task.metadata["image"]) == ("image/jpeg", picture("JPEG"))


@pytest.mark.parametrize("form", ["BMP", "TIFF"])
def test_images_that_clients_do_not_read_become_png(tmp_path: Path, form: str) -> None:
    import datasets
    from PIL import Image

    image_set(tmp_path / "set.parquet", {"image": [{"bytes": picture(form), "path": None}]}, image=datasets.Image())
    kind, data = unpacked(hub(tmp_path, "set.parquet").tasks("train")[0].metadata["image"])
    shown = Image.open(io.BytesIO(data))
    assert (kind, shown.format, shown.size, shown.getpixel((0, 0))) == ("image/png", "PNG", (6, 4), (255, 0, 0))


def test_an_image_that_lies_on_its_side_is_turned(tmp_path: Path) -> None:
    import datasets
    from PIL import Image

    mark = Image.Exif()
    mark[0x0112] = 6
    data = picture("JPEG", exif=mark)
    image_set(tmp_path / "set.parquet", {"image": [{"bytes": data, "path": None}]}, image=datasets.Image())
    kind, turned = unpacked(hub(tmp_path, "set.parquet").tasks("train")[0].metadata["image"])
    shown = Image.open(io.BytesIO(turned))
    assert (kind, shown.size, shown.getexif().get(0x0112)) == ("image/png", (4, 6), None)


def test_images_that_cannot_be_read_are_named_and_addresses_are_kept(tmp_path: Path) -> None:
    import datasets

    rows = [{"bytes": b"no image", "path": None}, {"bytes": None, "path": str(tmp_path / "gone.png")}]
    away = {"bytes": None, "path": "https://example.org/a.png"}
    image_set(tmp_path / "set.parquet", {"image": [away, *rows]}, image=datasets.Image())
    with pytest.raises(TaskError, match="damaged, or its format is unknown") as caught:
        hub(tmp_path, "set.parquet").tasks("train")
    assert "row 1" in caught.value.where
    with pytest.raises(TaskError, match=r"gone\.png cannot be read: No such file"):
        hub(tmp_path, "set.parquet", training_split="train[2:]").tasks("train")
    spared = experiment(
        tmp_path, "huggingface_dat_repo", huggingface_dat_repo={"dataset_path": "set.parquet"}, on_bad_row="skip"
    )
    (task,) = open_reader(spared).tasks("train")
    assert task.metadata["image"] == "https://example.org/a.png", "nothing is fetched"


def test_messages_with_images_are_as_long_as_their_text(tmp_path: Path) -> None:
    class Letters:
        def encode(self, text: str, **_: Any) -> list[int]:
            return [ord(letter) for letter in text]

    def within(limit: int) -> Any:
        made = Experiment.from_dict({"ajet": {"data": {"max_prompt_length": limit}}}, base=tmp_path)
        return drop_overlong(tasks, made.ajet.data, Letters())

    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 10_000}"}}
    said = [{"role": "user", "content": [{"type": "text", "text": "what colour is this?"}, image]}]
    tasks = [Task(task_id="t", init_messages=said)]
    assert within(20) == tasks
    with pytest.raises(TaskError, match="longer than 19 tokens"):
        within(19)


@pytest.mark.parametrize(
    ("path", "repository", "config"),
    [
        ("gsm8k", "openai/gsm8k", "main"),
        ("gsm8k/main", "openai/gsm8k", "main"),
        ("gsm8k/socratic", "openai/gsm8k", "socratic"),
        ("openai/gsm8k", "openai/gsm8k", "main"),
        ("org/name", "org/name", None),
        ("org/name/config", "org/name", "config"),
        ("name", "name", None),
    ],
)
def test_names_on_the_hub(tmp_path: Path, path: str, repository: str, config: str | None) -> None:
    place = locate_dataset(path, None, tmp_path)
    assert (place.path, place.config, place.local) == (repository, config, False)


def test_offline_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="hub does not answer") as caught:
        hub(tmp_path, "gsm8k/main").tasks("train")
    assert "local copy" in caught.value.do


def test_a_hub_that_does_not_answer_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from huggingface_hub import constants

    import ajet.task_reader.hugging_face as reader

    offline: list[tuple[bool, bool]] = []

    def load(*_: Any) -> Any:
        offline.append((constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE))
        raise TaskError("not in the cache")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(reader, "hub_answers", lambda _: False)
    monkeypatch.setattr(reader, "load_split", load)
    with pytest.raises(TaskError, match="hub does not answer"):
        hub(tmp_path, "gsm8k/main").tasks("train")
    assert offline == [(True, True)]
    assert not constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE


@pytest.mark.slow
def test_a_hub_that_hangs_is_given_up(tmp_path: Path) -> None:
    """A server that accepts connections and never answers; in a process, as the library reads its address once."""
    server = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def swallow() -> None:
        while True:
            try:
                kept.append(server.accept()[0])
            except OSError:
                return

    threading.Thread(target=swallow, daemon=True).start()
    code = (
        "from pathlib import Path; import sys; import ajet.task_reader.hugging_face as h; h.ANSWER_TIME = 2.0\n"
        "h.CACHE_TIME = 3.0\n"
        "from ajet.schema.errors import TaskError\n"
        "try: h.load_rows(h.locate_dataset('org/name', None, Path(sys.argv[1])), 'train')\n"
        "except TaskError as error: print(error)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    server.close()
    assert "hub does not answer" in done.stdout, done.stderr[-2000:]


# the others


def test_random_numbers_are_distinct_and_reproducible(tmp_path: Path) -> None:
    def numbers(split: Any, **more: Any) -> list[int]:
        reader = open_reader(experiment(tmp_path, "random_dummy", random_dummy=more))
        return [task.metadata["random_number"] for task in reader.tasks(split)]

    assert numbers("train", size=50) == numbers("train", size=50) == numbers("train", size=80)[:50]
    both = numbers("train") + numbers("validation")
    assert len(set(both)) == len(both) == 1016


def gym(folder: Path, **more: Any) -> Any:
    return open_reader(experiment(folder, "reasoning_gym", reasoning_gym={"size": 5, "validation_size": 4, **more}))


def test_reasoning_gym_tasks_and_their_own_scorer(tmp_path: Path) -> None:
    reader = gym(tmp_path, dataset="basic_arithmetic", params={"min_digits": 1, "max_digits": 2})
    train, validation = reader.tasks("train"), reader.tasks("validation")
    assert (len(train), len(validation)) == (5, 4)
    assert not {task.main_query for task in train} & {task.main_query for task in validation}
    for task in (*train, *validation):
        seen = WorkflowTask(task=task)
        right = WorkflowOutput(metadata={"final_answer": f"I think <answer>{task.metadata['answer']}</answer>"})
        assert reader.judge.compute_reward(seen, right) == (1.0, True)
        score, success = reader.judge.compute_reward(seen, WorkflowOutput(metadata={"final_answer": "no idea"}))
        assert (score, success) == (0.0, False)
    with pytest.raises(JudgeFailure, match="final_answer"):
        reader.judge.compute_reward(WorkflowTask(task=train[0]), WorkflowOutput())


def test_reasoning_gym_errors(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no task family basic_arithmetics") as caught:
        gym(tmp_path, dataset="basic_arithmetics").tasks("train")
    assert "basic_arithmetic" in caught.value.expected
    with pytest.raises(TaskError, match="refuses its parameters"):
        gym(tmp_path, dataset="basic_arithmetic", params={"colour": "red"}).tasks("train")


def test_a_users_reader_by_reference(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from ajet import Task\n"
        "class Mine:\n"
        "    def __init__(self, config): self.word = config.mine.word\n"
        "    def tasks(self, split): return [Task(main_query=self.word), Task(main_query=split)]\n"
        "class Wrong:\n"
        "    def __init__(self, config): pass\n"
        "    def tasks(self, split): return ['text']\n"
        "class NoReader: pass\n"
    )

    def made(name: str) -> Any:
        tree = {"ajet": {"task_reader": {"type": f"mine.py->{name}"}}, "mine": {"word": "hello"}}
        return open_reader(Experiment.from_dict(tree, base=tmp_path))

    tasks = made("Mine").tasks("train")
    assert [task.main_query for task in tasks] == ["hello", "train"] and tasks[0].task_id != tasks[1].task_id
    with pytest.raises(TaskError, match="a str instead of a Task"):
        made("Wrong").tasks("train")
    with pytest.raises(ConfigError, match="is not a task reader"):
        made("NoReader")
