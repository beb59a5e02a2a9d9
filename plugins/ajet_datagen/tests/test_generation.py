"""The reader `data_generation`, with a scripted server for the model that writes: what is asked, kept and left out."""

from __future__ import annotations

import json
import os
import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.schema.errors import ConfigError, TaskError
from ajet.task_reader import open_reader
from ajet_datagen.alike import (
    SimilarityMeasure,
    count_letter_runs,
    index_numbers,
    normalize_vectors,
    select_distinct,
    select_unlike,
)
from ajet_datagen.generation import patience
from ajet_datagen.generation.writer import mark_text, parse_tasks
from ajet_datagen.tests.generation_fixtures import (
    SEA,
    counted,
    examples,
    experiment,
    log_lines,
    prompts,
    read,
    writing_server,
)
from tests.support.judge_fixtures import SECRET, JudgeServer, judge_server

pytestmark = pytest.mark.slow


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[JudgeServer]:
    monkeypatch.setattr(patience, "WAIT_S", 0.01)
    with writing_server(monkeypatch, tmp_path) as running:
        yield running


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
    assert all(mark_text(SEA) in prompt for prompt in asked)
    assert [mark_text("What is 2 + 3?") in prompt for prompt in asked].count(True) >= 6
    assert all(said["model"] == "writer0" and said["temperature"] == 0.0 for said in server.seen)


def deduplicated(**params: Any) -> dict[str, Any]:
    return {"deduplication_filter": {"params": params}}


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": "another"},
    "temperature": {"sampling_params": {"temperature": 0.5}},
    "tasks": {"task_num": 5},
    "tokens": {"llm_response_length": 99},
    "passages": {"document_reader": {"document_path": ["sea.txt"], "chunk_size": 40}},
    "where they end": {"document_reader": {"document_path": ["sea.txt"], "chunk_size": 40, "split_by": "word"}},
    "documents": {"sea": SEA + " It has tides of a few centimetres."},
    "a document's name": {"document_reader": {"document_path": ["ocean.txt"]}},
    "examples": {"rows": ['{"query": "What is 3 + 3?", "answer": "6"}']},
    "their answers": {"rows": ['{"query": "What is 2 + 3?", "answer": "five"}']},
    "seed": {"seed": 8},
    "threshold": deduplicated(similarity_threshold=0.95),
    "threshold by letters": deduplicated(letters_threshold=0.95),
    "whether numbers differ": deduplicated(numbers="alike"),
    "no comparison": {"deduplication_filter": {"enabled": False}},
}
THE_SAME: dict[str, dict[str, Any]] = {
    "nothing": {},
    "prices": {"price_in": 3.0, "price_out": 4.0},
    "requests at once": {"num_workers": 1},
    "the key": {"api_key_env": "ANOTHER_KEY"},
}


def kept_at(folder: Path, server: JudgeServer, change: dict[str, Any]) -> tuple[Path, list[str]]:
    """The file of what is written under settings that are changed in that way, and all that was asked for it."""
    change = dict(change)
    model = {"model": "writer0", "base_url": server.url}
    model |= {
        key: change.pop(key)
        for key in [*change]
        if key in ("model", "base_url", "price_in", "price_out", "api_key_env")
    }
    (folder / "sea.txt").write_text(change.pop("sea", SEA))
    (folder / "ocean.txt").write_text(SEA)
    shown = examples(folder, *change.pop("rows", ()))
    seed = change.pop("seed", 7)
    given = experiment(folder, **{"models": [model], "task_num": 4, **shown, **change})
    given.ajet.seed = seed
    before = set((folder / "cache" / "generated").glob("*.jsonl"))
    server.seen.clear()
    open_reader(given).tasks("train")
    made = set((folder / "cache" / "generated").glob("*.jsonl")) - before
    return (made or {folder}).pop(), prompts(server)


@pytest.mark.parametrize("change", [*CHANGES, "base_url", "embedding server", "embedding model"])
def test_what_was_written_is_kept_until_something_changes(
    server: JudgeServer, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with judge_server(embedding(server.say)) as other:
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        changed = (
            CHANGES.get(change)
            or {
                "base_url": {"base_url": other.url},
                "embedding server": deduplicated(base_url=other.url),
                "embedding model": deduplicated(model="another"),
            }[change]
        )
        first, asked = kept_at(tmp_path, server, {})
        assert asked and first != tmp_path
        second, asked = kept_at(tmp_path, server, changed)
        assert second not in (tmp_path, first) and (asked or other.seen)


@pytest.mark.parametrize("change", THE_SAME)
def test_what_changes_no_reply_asks_nothing_anew(server: JudgeServer, tmp_path: Path, change: str) -> None:
    kept_at(tmp_path, server, {})
    assert kept_at(tmp_path, server, THE_SAME[change]) == (tmp_path, [])


def test_the_key_of_embeddings_changes_none(server: JudgeServer, tmp_path: Path) -> None:
    with judge_server(embedding(server.say)) as other:
        kept_at(tmp_path, server, deduplicated(base_url=other.url))
        asked = len(other.seen)
        again = deduplicated(base_url=other.url, api_key="of-embeddings")
        assert kept_at(tmp_path, server, again) == (tmp_path, []) and len(other.seen) == asked > 0


def test_an_embedding_model_without_a_server_is_asked_where_llm_model_is(
    server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = server.say
    with judge_server(embedding(writes)) as other:
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        for number, params in enumerate(({"model": "text-embedding-v3"}, {"api_key": "sk-own"}, {})):
            other.seen.clear()
            assert read(tmp_path, server, split="validation", task_num=2 + number, **deduplicated(**params))
            named = {asked["model"] for asked in other.seen}
            assert named == ({params.get("model", "text-embedding-v4")} if params else set())
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.delenv("OPENAI_API_KEY")
    for params in ({"model": "text-embedding-v3"}, {"api_key": "sk-own"}):
        server.seen.clear()
        with pytest.raises(ConfigError, match="but no server") as caught:
            read(tmp_path, server, **deduplicated(**params))
        assert "OPENAI_BASE_URL" in caught.value.expected and not server.seen and "sk-own" not in str(caught.value)
        off = {"deduplication_filter": {"enabled": False, "params": params}}
        assert read(tmp_path, server, split="validation", **off)


def test_what_was_paid_for_before_a_failure_is_not_asked_again(server: JudgeServer, tmp_path: Path) -> None:
    paid: list[str] = []
    refused: list[str] = []

    def once(asked: dict[str, Any]) -> Any:
        prompt = asked["messages"][0]["content"]
        if len(paid) == 3 and not refused:
            refused.append(prompt)
            return 402, "no more money"
        paid.append(prompt)
        return counted(asked)

    given = {**examples(tmp_path), "num_workers": 1, "document_reader": {"document_path": []}}
    server.say = once
    with pytest.raises(TaskError, match="No model writes tasks.*no more money") as caught:
        read(tmp_path, server, **given)
    assert SECRET not in str(caught.value) and "stored" in str(caught.value.do)
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
    with pytest.raises(TaskError, match="validation task"):
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
    with pytest.raises(TaskError, match="text-embedding-v4 at .* returns no embeddings"):
        read(tmp_path, server, split="validation", task_num=7, **alike)
    wrong: tuple[Any, ...] = ([[1.0]], [[1.0], [1.0, 2.0], [1.0]], [[float("nan")]] * 3, [[10**400]] * 3)
    for number, data in enumerate(([], *wrong)):
        told = {"data": [{"index": n, "embedding": row} for n, row in enumerate(data)]}
        server.say = lambda asked, told=told: (200, told) if "input" in asked else json.dumps({"tasks": same})
        with pytest.raises(TaskError, match="returns no embeddings"):
            read(tmp_path, server, split="validation", task_num=8 + number, **alike)
    nowhere = {"deduplication_filter": {"params": {"base_url": "http://here:port"}}}
    with pytest.raises(ConfigError, match="http://here:port is not a valid URL"):
        read(tmp_path, server, split="validation", **nowhere)
    off = {"deduplication_filter": {"enabled": False}}
    server.say = lambda asked: json.dumps({"tasks": same})
    assert len(read(tmp_path, server, split="validation", task_num=3, **off)) == 3


def embedding(say: Any, **vectors: list[float]) -> Any:
    """A server's script with embeddings: those that are named by a question's last word, and one apart for any other
    text."""

    def told(text: str) -> list[float]:
        drawn = random.Random(text)
        named = vectors.get(text.rpartition(" ")[2].strip("?"))
        return [*named, *[0.0] * 32] if named else [0.0] * 3 + [drawn.gauss(0, 1) for _ in range(32)]

    def said(asked: dict[str, Any]) -> Any:
        if "input" not in asked:
            return say(asked)
        return 200, {"data": [{"index": n, "embedding": told(text)} for n, text in enumerate(asked["input"])]}

    return said


def test_both_letters_and_embeddings_find_what_is_alike(server: JudgeServer, tmp_path: Path) -> None:
    """A model that takes a question written otherwise for another one does not let it in, and neither do letters what
    the model knows."""
    queries = ["How deep is the Baltic Sea?", "How deep is the Baltic  sea?", "Who counted the herring?", "Is it cold?"]
    server.say = embedding(
        lambda asked: json.dumps({"tasks": [{"query": each} for each in queries]}),
        Sea=[1.0, 0.0, 0.0], sea=[0.0, 1.0, 0.0], herring=[0.9, 0.1, 0.0], cold=[0.0, 0.0, 1.0],
    )  # fmt: skip
    alike = {"base_url": server.url}

    def stays(**params: Any) -> list[str]:
        tasks = read(tmp_path, server, split="validation", **deduplicated(**alike, **params))
        return [task.main_query for task in tasks]

    assert stays() == [queries[0], queries[3]]
    assert stays(similarity_threshold=1.0) == [queries[0], queries[2], queries[3]], "letters are as alike as can be"
    assert stays(similarity_threshold=0.999, letters_threshold=0.4) == [queries[0], queries[2], queries[3]]
    alike["base_url"] = None
    assert stays() == [queries[0], queries[2], queries[3]], "by letters alone"


def test_numbers_make_two_tasks_of_what_is_alike_else(server: JudgeServer, tmp_path: Path) -> None:
    """Both for letters, which one long wording needs, and for embeddings, to which all sums are one."""
    tale = "A farmer has 12 hens that lay 3 eggs a day each; how many eggs do all of them lay in a whole week?"
    queries = [
        "What is 3 + 4?", "What is 18 + 25?", "What is 4 + 3?", "What is 3.0 + 4?", "What is three and four?",
        tale, tale.replace("12", "1,200"), tale.replace("12", "1200"),
    ]  # fmt: skip
    server.say = embedding(
        lambda asked: json.dumps({"tasks": [{"query": each} for each in queries]}),
        **{"4": [1.0, 0, 0], "25": [1.0, 0, 0], "3": [1.0, 0, 0], "four": [1.0, 0, 0], "week": [0, 1.0, 0]},
    )

    def stays(**params: Any) -> list[int]:
        given = {"base_url": server.url, **params}
        tasks = read(tmp_path, server, split="validation", task_num=8, **deduplicated(**given))
        return [queries.index(task.main_query) for task in tasks]

    assert stays() == [0, 1, 5, 6], "one without figures may be any of them, and is none of its own"
    assert stays(numbers="alike") == [0, 5]
    assert stays(base_url=None) == [*range(7)], "by letters alone, to which short ones are apart"


def test_the_numbers_of_a_text() -> None:
    texts = ["3 and 4", "4, 3", "3 and 4 and 4", "none", "3.50", "3.5", "1,000 of 2", "2 of 1000", "in 2021", "7b"]
    assert index_numbers(texts).tolist() == [1, 1, 2, 0, 3, 3, 4, 4, 5, 6]


def test_variations_of_an_example_with_other_numbers_are_trained_on(server: JudgeServer, tmp_path: Path) -> None:
    """Few-shot: what differs from the example in its numbers alone is what was asked for."""
    sums = [f"What is {n} + {n + 1}?" for n in range(2, 9)]

    def told(asked: dict[str, Any]) -> Any:
        if "input" in asked:
            return 200, {"data": [{"index": n, "embedding": [1.0, 0.0]} for n, _ in enumerate(asked["input"])]}
        return json.dumps({"tasks": [{"query": sums[len(prompts(server)) % len(sums)]}]})

    server.say = told
    given = {"document_reader": {"document_path": []}, "num_workers": 1, "task_num": 3, **examples(tmp_path)}
    trained = read(tmp_path, server, **given, **deduplicated(base_url=server.url))
    assert len(trained) == 3 and "What is 2 + 3?" not in {task.main_query for task in trained}
    with pytest.raises(TaskError, match="too similar to an example"):
        read(tmp_path, server, **given, **deduplicated(base_url=server.url, numbers="alike"))


def test_an_embedding_server_is_asked_again_as_models_that_write_are(server: JudgeServer, tmp_path: Path) -> None:
    """Rate limits and what its server broke at cost a wait; a key that is refused, or an answer that is none, does
    not."""
    wrong: list[Any] = []
    writes = server.say
    plain = embedding(writes)
    embedded: list[Any] = []

    def told(asked: dict[str, Any]) -> Any:
        if "input" not in asked:
            return writes(asked)
        embedded.append(asked)
        return wrong.pop() if wrong else plain(asked)

    server.say = told
    given = deduplicated(base_url=server.url)
    for number, fault in enumerate(((429, "slow down"), (500, "down"), (503, "overloaded"), (502, "no one there"))):
        wrong[:], embedded[:] = [fault] * patience.AGAIN, []
        assert read(tmp_path, server, split="validation", task_num=2 + number, **given)
        assert len(embedded) == patience.AGAIN + 1 and not wrong
    for number, (fault, times) in enumerate((((429, "slow down"), patience.AGAIN + 1), ((401, "who are you"), 1))):
        wrong[:], embedded[:] = [fault] * 9, []
        with pytest.raises(TaskError, match=f"text-embedding-v4 at 127.0.0.1.* with status {fault[0]}"):
            read(tmp_path, server, split="validation", task_num=7 + number, **given)
        assert len(embedded) == times
    wrong[:], embedded[:] = [], []
    assert read(tmp_path, server, split="validation", task_num=7, **given), "what was written is kept"


@pytest.mark.parametrize("most", [64, 10, 1])
def test_texts_that_are_refused_are_compared_by_letters_alone(server: JudgeServer, tmp_path: Path, most: int) -> None:
    """Too many for one request (a server may take ten), or one that no model takes: it used to end the reading."""
    queries = ["How deep is the sea?", "How deep  is the SEA?", *(f"{word}?" for word in "abcdefghijklmnopqrstuvwxyz")]
    asked_for: list[int] = []

    def said(asked: dict[str, Any]) -> Any:
        if "input" not in asked:
            return json.dumps({"tasks": [{"query": each} for each in queries[:10]]})
        asked_for.append(len(asked["input"]))
        if len(asked["input"]) > most or "b?" in asked["input"]:
            return 400, "batch size or content is invalid"
        return 200, {"data": [{"index": n, "embedding": [1.0, 2.0]} for n, _ in enumerate(asked["input"])]}

    server.say = said
    with log_lines("WARNING") as logged:
        tasks = read(tmp_path, server, split="validation", task_num=4, **deduplicated(base_url=server.url))
    assert [task.main_query for task in tasks] == [queries[0], "b?"], "to vectors that are all the same all else is one"
    assert any("1 of 10 questions are compared by letters only" in line for line in logged)
    server.seen.clear()
    assert read(tmp_path, server, split="validation", task_num=4, **deduplicated(base_url=server.url)) == tasks
    assert not [asked for asked in server.seen if "input" in asked]
    server.say = lambda asked: (400, "no such model") if "input" in asked else said(asked)
    with pytest.raises(TaskError, match="returns no embeddings.*no such model"):
        read(tmp_path, server, split="validation", task_num=5, **deduplicated(base_url=server.url))


def test_what_is_like_an_example_or_a_held_out_task_is_not_trained_on(server: JudgeServer, tmp_path: Path) -> None:
    said = ["How many eggs does a hen lay in seven days?", "How  many EGGS does a hen lay in seven days", "Is it raw?"]

    def by_split(asked: dict[str, Any]) -> str:
        of_validation = "exactly 10 in the list" in asked["messages"][0]["content"]
        queries = ["How deep is the Baltic Sea?"] if of_validation else [*said, "How deep is the  Baltic sea?"]
        number = len(server.seen) % len(queries)
        return json.dumps({"tasks": [{"query": queries[number]}]})

    server.say = by_split
    given = examples(tmp_path, json.dumps({"query": said[0]}))
    trained = read(tmp_path, server, num_workers=1, **given)
    assert [task.main_query for task in trained] == ["Is it raw?"]


def test_where_nothing_is_left_it_is_said_why(server: JudgeServer, tmp_path: Path) -> None:
    server.say = lambda asked: json.dumps({"tasks": [{"query": "What  is 2 + 3?"}]})
    given = {"document_reader": {"document_path": []}, "num_workers": 1, "task_num": 2}
    with pytest.raises(TaskError, match="All 6 written tasks are too similar") as caught:
        read(tmp_path, server, **given, **examples(tmp_path))
    assert "similarity_threshold" in str(caught.value.do)


def test_an_embedding_model_that_is_none_is_named_before_anything_is_asked(server: JudgeServer, tmp_path: Path) -> None:
    for params, says in (
        ({"model": "embedded:huge"}, "There is no embedding model embedded:huge."),
        ({"model": "embedded:all-minilm-l6-v2", "base_url": server.url}, "embedded:all-minilm-l6-v2 at a server"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            read(tmp_path, server, **deduplicated(**params))
        assert "embedded:all-minilm-l6-v2" in str(caught.value.expected) and not server.seen


def test_a_folder_is_read_whole_but_for_hidden_files(server: JudgeServer, tmp_path: Path) -> None:
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / ".DS_Store").write_bytes(b"\xff")
    (tmp_path / "docs" / "deep" / "sea.txt").write_text(SEA)
    given = {"document_reader": {"document_path": ["docs"]}}
    assert {task.metadata["source"] for task in read(tmp_path, server, split="validation", **given)} == {"sea.txt"}
    (tmp_path / "docs" / "LICENSE").write_text(SEA)
    with pytest.raises(TaskError, match="LICENSE has an unsupported suffix"):
        read(tmp_path, server, split="validation", **given)


def test_an_address_that_is_none_is_named_by_its_key(server: JudgeServer, tmp_path: Path) -> None:
    models = [{"model": "a", "base_url": server.url}, {"model": "b", "base_url": "http://[::1"}]
    with pytest.raises(ConfigError, match="is not a valid URL") as caught:
        read(tmp_path, models=models)
    assert caught.value.where == "ajet.task_reader.data_generation.models[1].base_url"


def test_mistakes_have_answers(server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"document_reader": {"document_path": []}}
    with pytest.raises(TaskError, match="train tasks"):
        read(tmp_path, server, **nothing)
    with pytest.raises(TaskError, match="validation tasks"):
        read(tmp_path, server, split="validation", **examples(tmp_path), **nothing)
    with pytest.raises(TaskError, match="The document see.txt does not exist") as caught:
        read(tmp_path, server, document_reader={"document_path": ["see.txt"]})
    assert "did you mean sea.txt?" in str(caught.value.do)
    with pytest.raises(TaskError, match="The document elsewhere does not exist") as caught:
        read(tmp_path, server, document_reader={"document_path": "elsewhere"})
    assert caught.value.do == "correct the path" and "a file or a folder" in caught.value.expected
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden.txt").write_text(SEA)
    with pytest.raises(TaskError, match="There is no document in the folder empty") as caught:
        read(tmp_path, server, document_reader={"document_path": ["sea.txt", "empty"]})
    assert ".pdf" in caught.value.expected
    (tmp_path / "x.odt").write_text("x")
    with pytest.raises(TaskError, match="x.odt has an unsupported suffix"):
        read(tmp_path, server, document_reader={"document_path": ["x.odt"]})
    with pytest.raises(TaskError, match="cannot be split by page"):
        read(tmp_path, server, document_reader={"document_path": ["sea.txt"], "split_by": "page"})
    with pytest.raises(TaskError, match="mine.py->Reader cannot read"):
        read(tmp_path, server, query_reader={"type": "mine.py->Reader"})


# what is alike, what is marked


@given(st.lists(st.sampled_from(["a b c d e", "A b  c d e", "f g h i j", "quite another one"]), max_size=8))
def test_the_first_of_each_stays(texts: list[str]) -> None:
    kept = [
        texts[place].casefold().replace("  ", " ")
        for place in select_distinct(SimilarityMeasure(count_letter_runs(texts), 0.9))
    ]
    assert kept == list(dict.fromkeys(text.casefold().replace("  ", " ") for text in texts))


def test_equal_vectors_are_alike_at_any_threshold() -> None:
    """Their cosine may be a rounding below 1."""
    same = normalize_vectors(count_letter_runs(["How deep is the Baltic Sea, and what lives in it?"] * 3) * 3)
    assert select_distinct(SimilarityMeasure(same, 1.0)) == [0]
    assert (
        select_distinct(SimilarityMeasure(same, 1.0, known=same[:1])) == [] and select_unlike(same, same[:1], 1.0) == []
    )


@given(st.text(max_size=100))
def test_nothing_closes_its_own_marks(text: str) -> None:
    shown = mark_text(text)
    closing = shown.rpartition("\n")[2]
    assert shown.count(closing) == 1


def test_a_reply_may_have_words_around_it() -> None:
    found = parse_tasks('Sure! ```json\n{"tasks": [{"query": " a "}, {"query": "b", "answer": 2}]}\n``` Done.', 5)
    assert found is not None and [(each.query, each.answer) for each in found] == [("a", ""), ("b", "2")]


HALF = "\ud83d"
"""Of a letter: JSON may escape it, no file can hold it."""


def test_half_a_letter_is_marked_and_what_was_paid_for_is_kept(server: JudgeServer, tmp_path: Path) -> None:
    found = parse_tasks(json.dumps({"tasks": [{"query": f"a{HALF}b", "answer": "\ud83d\ude00" + HALF}]}), 5)
    assert found is not None and [(each.query, each.answer) for each in found] == [("a\ufffdb", "\U0001f600\ufffd")]
    server.say = lambda asked: json.dumps({"tasks": [{"query": f"Who is {HALF}?", "answer": HALF}]})
    [task] = read(tmp_path, server, split="validation")
    assert task.main_query == "Who is \ufffd?"
    server.seen.clear()
    assert read(tmp_path, server, split="validation") == [task] and not prompts(server)


def test_documents_are_one_path_or_several_whatever_their_names(server: JudgeServer, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "docs") + b"/s\xe9a.txt")).write_text(SEA)  # as another encoding wrote it
    tasks = read(tmp_path, server, split="validation", document_reader={"document_path": "docs"})
    assert {task.metadata["source"] for task in tasks} == {"s\ufffda.txt"}


def test_an_example_that_says_nothing_is_no_crash(server: JudgeServer, tmp_path: Path) -> None:
    given = examples(tmp_path, '{"init_messages": [{"role": "user"}], "answer": "5"}')
    assert read(tmp_path, server, document_reader={"document_path": []}, **given)


def test_embeddings_beyond_a_small_float_are_compared_all_the_same(server: JudgeServer, tmp_path: Path) -> None:
    tasks = [{"query": text} for text in ("How deep is the sea?", "Who counts herring?", "Does it freeze?")]
    large = [[1e39, 0.0], [2e39, 1e30], [0.0, 1e-39]]

    def embeds(asked: dict[str, Any]) -> Any:
        if "input" not in asked:
            return json.dumps({"tasks": tasks})
        return 200, {"data": [{"index": n, "embedding": large[n]} for n, _ in enumerate(asked["input"])]}

    server.say = embeds
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read(tmp_path, server, split="validation", **deduplicated(base_url=server.url))
    assert [task.main_query for task in found] == [tasks[0]["query"], tasks[2]["query"]]


def test_a_reply_that_could_not_be_read_is_asked_for_again(server: JudgeServer, tmp_path: Path) -> None:
    given = {"task_num": 4}
    server.say = lambda asked: "no list"
    with pytest.raises(TaskError, match="No reply contains"):
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
    assert re.fullmatch(r"<text-[0-9a-f]{32}>\nword\n</text-[0-9a-f]{32}>", mark_text("word"))
