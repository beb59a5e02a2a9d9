"""The reader `data_generation`, with a scripted server for the model that writes: what is asked, kept and left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.config import Experiment
from ajet.schema.errors import ConfigError, TaskError
from ajet.schema.task import Task
from ajet.task_reader import open_reader
from ajet.task_reader.alike import by_letters, first_of_each
from ajet.task_reader.generation.documents import ENDS, passages, text_of_file
from ajet.task_reader.generation.writer import marked, written
from tests.judge_fixtures import SECRET, JudgeServer, judge_server

SEA = "The Baltic Sea is brackish. Its mean depth is 55 metres. It freezes in part in most winters."
WORDS = [
    *("amber", "basalt", "copper", "diamond", "emerald", "feldspar", "garnet", "halite", "iolite", "jade", "kyanite"),
    *("lapis", "marble", "nickel", "opal", "pyrite", "quartz", "ruby", "slate", "topaz", "ulexite", "zircon"),
]


def counted(asked: dict[str, Any]) -> str:
    """As many tasks as were asked for, each about another stone."""
    prompt = asked["messages"][0]["content"]
    count = int(re.findall(r"exactly (\d+) in the list", prompt)[-1])
    start = sum(ord(letter) for letter in prompt) % len(WORDS)
    chosen = [WORDS[(start + number) % len(WORDS)] for number in range(count)]
    return json.dumps({"tasks": [{"query": f"How hard is {word}?", "answer": len(word)} for word in chosen]})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[JudgeServer]:
    with judge_server(counted) as running:
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        monkeypatch.setenv("AJET_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("DASHSCOPE_API_KEY", raising=False)
        (tmp_path / "sea.txt").write_text(SEA)
        yield running


def experiment(folder: Path, *servers: JudgeServer, **more: Any) -> Experiment:
    section = {
        "models": [{"model": f"writer{number}", "base_url": each.url} for number, each in enumerate(servers)],
        "document_reader": {"document_path": ["sea.txt"]},
        "task_num": 6,
        **more,
    }
    reader = {"type": "data_generation", "data_generation": section}
    return Experiment.from_dict({"ajet": {"task_reader": reader}}, base=folder)


def read(*given: Any, split: Any = "train", **more: Any) -> list[Task]:
    return list(open_reader(experiment(*given, **more)).tasks(split))


def examples(folder: Path) -> dict[str, Any]:
    (folder / "examples.jsonl").write_text('{"query": "What is 2 + 3?", "answer": "5"}\n')
    return {"query_reader": {"jsonl_dataset_file": {"training": {"file_path": "examples.jsonl"}}}}


def prompts(server: JudgeServer) -> list[str]:
    return [asked["messages"][0]["content"] for asked in server.seen]


def test_questions_on_documents_are_held_out_and_variations_of_examples_trained_on(
    server: JudgeServer, tmp_path: Path
) -> None:
    reader = open_reader(experiment(tmp_path, server, **examples(tmp_path)))
    held_out, trained = reader.tasks("validation"), reader.tasks("train")
    assert len(held_out) == 6 and 0 < len(trained) <= 6
    assert not {task.main_query for task in held_out} & {task.main_query for task in trained}
    for task in held_out:
        word = task.main_query.removeprefix("How hard is ").removesuffix("?")
        assert task.metadata == {"answer": str(len(word)), "source": "sea.txt", "related_doc": SEA}
    asked = prompts(server)
    assert all(marked(SEA) in prompt for prompt in asked)
    assert [marked("What is 2 + 3?") in prompt for prompt in asked].count(True) >= 6
    assert all(said["model"] == "writer0" and said["temperature"] == 0.0 for said in server.seen)


def test_what_was_written_is_kept_until_something_changes(server: JudgeServer, tmp_path: Path) -> None:
    first = read(tmp_path, server)
    asked = len(server.seen)
    assert read(tmp_path, server) == first and len(server.seen) == asked
    for change in ({"sampling_params": {"temperature": 0.5}}, {"task_num": 5}, {"llm_response_length": 99}):
        before = len(server.seen)
        read(tmp_path, server, **change)
        assert len(server.seen) > before, change
    before = len(server.seen)
    (tmp_path / "sea.txt").write_text(SEA + " It has tides of a few centimetres.")
    read(tmp_path, server)
    assert len(server.seen) > before


def test_what_was_paid_for_before_a_failure_is_not_asked_again(server: JudgeServer, tmp_path: Path) -> None:
    paid: list[str] = []
    refused: list[str] = []

    def once(asked: dict[str, Any]) -> Any:
        prompt = asked["messages"][0]["content"]
        if len(paid) == 3 and not refused:
            refused.append(prompt)
            return 400, "no more money"
        paid.append(prompt)
        return counted(asked)

    given = {**examples(tmp_path), "num_workers": 1, "document_reader": {"document_path": []}}
    server.say = once
    with pytest.raises(TaskError, match="No model writes tasks.*no more money") as caught:
        read(tmp_path, server, **given)
    assert SECRET not in str(caught.value) and "kept" in str(caught.value.do)
    assert len(server.seen) == 4, "nothing is asked after the first that nobody answers"
    before = set(paid)
    server.seen.clear()
    tasks = read(tmp_path, server, **given)
    assert tasks and not before & set(prompts(server)) and prompts(server)[0] == refused[0]
    server.seen.clear()
    assert read(tmp_path, server, **given) == tasks and not server.seen


def test_the_next_model_is_asked_where_one_refuses(server: JudgeServer, tmp_path: Path) -> None:
    with judge_server(lambda asked: (401, "who are you")) as broken:
        tasks = read(tmp_path, broken, server, split="validation")
    assert len(tasks) == 6 and broken.seen and server.seen


@pytest.mark.parametrize(
    "reply", ["I would rather not.", '{"tasks": 3}', '{"tasks": [{"question": "x"}]}', "{" * 2000, '{"tasks": []}']
)
def test_what_is_no_list_of_tasks_is_none(server: JudgeServer, tmp_path: Path, reply: str) -> None:
    server.say = lambda asked: reply
    with pytest.raises(TaskError, match="Nothing that was written is a validation task"):
        read(tmp_path, server, split="validation")


def test_tasks_that_are_alike_are_left_out_by_letters_or_by_embeddings(server: JudgeServer, tmp_path: Path) -> None:
    same = [{"query": text} for text in ("How deep is the sea?", "how deep  is the SEA ?", "Does it freeze?")]
    server.say = lambda asked: json.dumps({"tasks": same})
    kept = read(tmp_path, server, split="validation")
    assert [task.main_query for task in kept] == ["How deep is the sea?", "Does it freeze?"]

    def embeds(asked: dict[str, Any]) -> Any:
        if "input" not in asked:
            return json.dumps({"tasks": same})
        return 200, {"data": [{"index": n, "embedding": [1.0, 0.1]} for n, _ in enumerate(asked["input"])]}

    server.say = embeds
    alike = {"deduplication_filter": {"params": {"base_url": server.url}}}
    assert [task.main_query for task in read(tmp_path, server, split="validation", **alike)] == [same[0]["query"]]
    server.say = lambda asked: (500, "down") if "input" in asked else json.dumps({"tasks": same})
    with pytest.raises(TaskError, match="text-embedding-v4 gives no embeddings"):
        read(tmp_path, server, split="validation", task_num=7, **alike)
    for number, data in enumerate(([], [[1.0]], [[1.0], [1.0, 2.0], [1.0]], [[float("nan")]] * 3)):
        told = {"data": [{"index": n, "embedding": row} for n, row in enumerate(data)]}
        server.say = lambda asked, told=told: (200, told) if "input" in asked else json.dumps({"tasks": same})
        with pytest.raises(TaskError, match="gives no embeddings"):
            read(tmp_path, server, split="validation", task_num=8 + number, **alike)
    nowhere = {"deduplication_filter": {"params": {"base_url": "http://here:port"}}}
    with pytest.raises(TaskError, match="gives no embeddings: InvalidURL"):
        read(tmp_path, server, split="validation", **nowhere)
    off = {"deduplication_filter": {"enabled": False}}
    server.say = lambda asked: json.dumps({"tasks": same})
    assert len(read(tmp_path, server, split="validation", task_num=3, **off)) == 3


def test_a_folder_is_read_whole_but_for_hidden_files(server: JudgeServer, tmp_path: Path) -> None:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / ".DS_Store").write_bytes(b"\xff")
    (tmp_path / "docs" / "deep" / "sea.txt").write_text(SEA)
    given = {"document_reader": {"document_path": ["docs"]}}
    assert {task.metadata["source"] for task in read(tmp_path, server, split="validation", **given)} == {"sea.txt"}
    (tmp_path / "docs" / "LICENSE").write_text(SEA)
    with pytest.raises(TaskError, match="LICENSE is of a kind that is not read"):
        read(tmp_path, server, split="validation", **given)


def test_an_address_that_is_none_is_named_by_its_key(server: JudgeServer, tmp_path: Path) -> None:
    models = [{"model": "a", "base_url": server.url}, {"model": "b", "base_url": "http://[::1"}]
    with pytest.raises(ConfigError, match="is no address") as caught:
        read(tmp_path, models=models)
    assert caught.value.where == "ajet.task_reader.data_generation.models[1].base_url"


def test_mistakes_have_answers(server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"document_reader": {"document_path": []}}
    with pytest.raises(TaskError, match="nothing to write train tasks from"):
        read(tmp_path, server, **nothing)
    with pytest.raises(TaskError, match="nothing to write validation tasks from"):
        read(tmp_path, server, split="validation", **examples(tmp_path), **nothing)
    with pytest.raises(TaskError, match="does not exist") as caught:
        read(tmp_path, server, document_reader={"document_path": ["see.txt"]})
    assert "did you mean sea.txt?" in str(caught.value.do)
    (tmp_path / "x.odt").write_text("x")
    with pytest.raises(TaskError, match="x.odt is of a kind that is not read"):
        read(tmp_path, server, document_reader={"document_path": ["x.odt"]})
    with pytest.raises(TaskError, match="not cut by page"):
        read(tmp_path, server, document_reader={"document_path": ["sea.txt"], "split_by": "page"})
    with pytest.raises(TaskError, match="not read by mine.py->Reader"):
        read(tmp_path, server, query_reader={"type": "mine.py->Reader"})


# documents


def a_word_file(path: Path) -> None:
    from docx import Document

    document = Document()
    document.add_paragraph(SEA)
    document.add_table(1, 2).rows[0].cells[1].text = "cod"
    document.save(str(path))


def a_presentation(path: Path) -> None:
    from pptx import Presentation

    slides = Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[5])
    slide.shapes.title.text = SEA
    slides.save(str(path))


def a_page(path: Path) -> None:
    path.write_text(f"<html><script>no()</script><body><p>{SEA}</p></body></html>")


@pytest.mark.parametrize("kind, make", [("docx", a_word_file), ("pptx", a_presentation), ("html", a_page)])
def test_documents_of_each_kind_are_read(tmp_path: Path, kind: str, make: Callable[[Path], None]) -> None:
    file = tmp_path / f"sea.{kind}"
    make(file)
    text = text_of_file(file)
    assert SEA in text and "no()" not in text and ("cod" in text) == (kind == "docx")


@pytest.mark.parametrize("kind", ["docx", "pptx", "pdf", "txt"])
def test_what_is_no_document_is_said(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"bad.{kind}"
    file.write_bytes(b"\xff\xfe\x00 no document")
    with pytest.raises(TaskError, match=f"bad.{kind} cannot be read"):
        text_of_file(file)


def test_a_word_file_whose_xml_is_damaged_is_said(tmp_path: Path) -> None:
    import zipfile

    whole, damaged = tmp_path / "sea.docx", tmp_path / "bad.docx"
    a_word_file(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name)[: 99 if name == "word/document.xml" else None])
    with pytest.raises(TaskError, match="bad.docx cannot be read"):
        text_of_file(damaged)


@given(text=st.text(max_size=400), size=st.integers(1, 60), split_by=st.sampled_from(sorted(ENDS)))
def test_passages_hold_all_of_a_text_and_are_no_longer_than_asked(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int, split_by: str
) -> None:
    file = tmp_path_factory.mktemp("text") / "a.txt"
    file.write_text("x" + text, encoding="utf-8")
    found = [passage.text for passage in passages(file, size=size, split_by=split_by)]
    assert all(0 < len(each) <= size for each in found)
    assert "".join("".join(found).split()) == "".join(("x" + text).split())


# what is alike, what is marked


@given(st.lists(st.sampled_from(["a b c d e", "A b  c d e", "f g h i j", "quite another one"]), max_size=8))
def test_the_first_of_each_stays(texts: list[str]) -> None:
    kept = [texts[place].casefold().replace("  ", " ") for place in first_of_each(by_letters(texts), 0.9)]
    assert kept == list(dict.fromkeys(text.casefold().replace("  ", " ") for text in texts))


@given(st.text(max_size=100))
def test_nothing_closes_its_own_marks(text: str) -> None:
    shown = marked(text)
    closing = shown.rpartition("\n")[2]
    assert shown.count(closing) == 1


def test_a_reply_may_have_words_around_it() -> None:
    found = written('Sure! ```json\n{"tasks": [{"query": " a "}, {"query": "b", "answer": 2}]}\n``` Done.', 5)
    assert found is not None and [(each.query, each.answer) for each in found] == [("a", ""), ("b", "2")]


def test_a_reply_that_could_not_be_read_is_asked_for_again(server: JudgeServer, tmp_path: Path) -> None:
    given = {"task_num": 4}
    server.say = lambda asked: "no list"
    with pytest.raises(TaskError, match="Nothing that was written"):
        read(tmp_path, server, split="validation", **given)
    server.say = counted
    assert len(read(tmp_path, server, split="validation", **given)) == 4


def test_embeddings_of_another_length_are_one_error(server: JudgeServer, tmp_path: Path) -> None:
    calls: list[Any] = []

    def embedded(asked: dict[str, Any]) -> Any:
        if "input" not in asked:
            return counted(asked)
        calls.append(asked)
        width = 3 if len(calls) == 1 else 2  # the held-out tasks are embedded first
        return 200, {"data": [{"index": at, "embedding": [1.0] * width} for at, _ in enumerate(asked["input"])]}

    server.say = embedded
    params = {"base_url": server.url, "similarity_threshold": 0.99}
    with pytest.raises(TaskError, match=r"different lengths \(2, 3 numbers\)"):
        read(tmp_path, server, deduplication_filter={"params": params})


def test_marks_are_too_long_to_be_guessed() -> None:
    assert re.fullmatch(r"<text-[0-9a-f]{32}>\nword\n</text-[0-9a-f]{32}>", marked("word"))
