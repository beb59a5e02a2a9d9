"""Traces and feedback that others wrote and that are damaged: bad rows and mistakes of a person's, never a crash."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ajet.schema.errors import TaskError, UserError
from ajet.schema.task import Task
from ajet.task_reader.jsonl import read_tasks
from ajet_datagen.generation.documents import read_document
from ajet_datagen.tests.test_tracing import ASKED, SAID, flat_span, observed, otlp, reader, studio
from ajet_datagen.tracing import TracingReader
from ajet_datagen.tracing.sources import read_sources

HALF = "\ud83d"
"""Of a letter: JSON may escape it, no file can hold it."""


def deep(levels: int) -> Any:
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**400, float("inf"), float("nan"), "", "x", HALF, "[1", "{}", "[[]]", [], {}, [1], [None],
    {"a": 1}, {"stringValue": 5}, {"doubleValue": float("nan")}, {"intValue": "x"}, {"arrayValue": 3}, deep(300),
)  # fmt: skip
"""In the place of any value of a recording."""


def place(tree: Any, draw: random.Random) -> tuple[Any, ...]:
    """Of one of its values; those near the root are as likely as many deep ones."""
    found: tuple[Any, ...] = ()
    while tree and isinstance(tree, (dict, list)) and draw.random() < 0.85:
        name = draw.choice(list(tree)) if isinstance(tree, dict) else draw.randrange(len(tree))
        found, tree = (*found, name), tree[name]
    return found


def mutated(tree: Any, draw: random.Random) -> Any:
    """With one value in another one's place; a text that holds JSON is often changed within."""
    path = place(tree, draw)
    if not path:
        inner = tree if isinstance(tree, str) and tree[:1] in ("[", "{") else None
        if inner is not None and draw.random() < 0.8:
            return json.dumps(mutated(json.loads(inner), draw))
        return draw.choice(WRONG)
    tree = json.loads(json.dumps(tree))
    parent = tree
    for name in path[:-1]:
        parent = parent[name]
    value = parent[path[-1]]
    if isinstance(parent, dict) and draw.random() < 0.2:
        del parent[path[-1]]
    else:
        parent[path[-1]] = mutated(value, draw) if isinstance(value, str) else draw.choice(WRONG)
    return tree


TOOLS = [{"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}]
CALL = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}]}
ANSWER = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": [{"text": "3"}]}]}
CALLS = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
MESSAGES = [
    {"role": "user", "name": "user", "content": [{"type": "text", "text": "1 + 2?"}]},
    {"role": "assistant", "name": "F", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
]
TOLD = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m1", "gen_ai.conversation.id": "run-1"}
AGENTSCOPE = (
    ("t1", "chat m1", TOLD | {"agentscope.function.input": json.dumps({"args": [MESSAGES], "kwargs": {}}),
                              "gen_ai.output.messages": json.dumps([SAID])}),
    ("t1", "chat m1", TOLD | {"agentscope.function.input": {"args": [], "kwargs": {"messages": MESSAGES}},
                              "agentscope.function.output": MESSAGES[1]}),
    ("t2", "ReActAgent.reply", {"input": {"args": [], "kwargs": {"msg": "Msg(name='u', content='2?', role='user')"}},
                                "output": "Msg(name='F', content='Two.', role='assistant')"}),
)  # fmt: skip
SCORE = {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.75}}
GENAI = json.loads(
    otlp(
        ("t1", flat_span(**{"gen_ai.response.id": "r1", "gen_ai.tool.definitions": json.dumps(TOOLS),
                            "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}])})),
        ("t2", {**flat_span(), "gen_ai.input.messages": json.dumps([ASKED, CALL, ANSWER])}),
        events=[{"name": "gen_ai.evaluation.result", "attributes": [SCORE]}],
    )
)  # fmt: skip
FEEDBACK = (
    {"reply": "r1", "corrected": "Three.", "comment": "no"},
    {"session": "run-1", "liked": True},
    {"session": "t2", "reward": 0.5},
)


def wrong_otlp(folder: Path, draw: random.Random) -> None:
    (folder / "one.json").write_text(json.dumps(mutated(GENAI, draw)))


def wrong_agentscope(folder: Path, draw: random.Random) -> None:
    (folder / "studio.db").unlink()
    at = draw.randrange(len(AGENTSCOPE))
    rows = [(trace, name, mutated(told, draw) if n == at else told) for n, (trace, name, told) in enumerate(AGENTSCOPE)]
    studio(folder / "studio.db", *rows)


def wrong_feedback(folder: Path, draw: random.Random) -> None:
    rows = list(FEEDBACK)
    at = draw.randrange(len(rows))
    rows[at] = mutated(rows[at], draw)
    (folder / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def wrong_record(folder: Path, draw: random.Random) -> None:
    [file] = (folder / "run" / "episodes").glob("*.jsonl")
    lines = file.read_text().splitlines()
    at = draw.randrange(len(lines))
    lines[at] = json.dumps(mutated(json.loads(lines[at]), draw))
    file.write_text("".join(f"{line}\n" for line in lines))


def sound(folder: Path) -> None:
    """A recording of each kind."""
    (folder / "one.json").write_text(json.dumps(GENAI))
    studio(folder / "studio.db", *AGENTSCOPE)
    (folder / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in FEEDBACK))
    rated = [{"reply": "r0", "liked": True}, {"session": "session-0", "reward": 0.25}]
    observed(folder / "run", ("What is 4 + 4?", "Eight.", rated), ("Who wrote Faust?", "Goethe.", None))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [wrong_otlp, wrong_agentscope, wrong_feedback, wrong_record])
def test_whatever_is_wrong_is_a_bad_row(tmp_path: Path, kind: Any) -> None:
    """A row that is left out, or an answer: whichever value of a recording is another one."""
    sound(tmp_path)
    told = {"sources": ["one.json", "studio.db", "run"], "feedback": "said.jsonl"}
    strict = reader(tmp_path, **told)
    whole = sum(strict.write(tmp_path / "out").values())
    assert whole > 8 and not strict.left["could not be read"]
    reader(tmp_path, on_bad_row="skip", **told)
    skips = TracingReader(strict_experiment := _experiment(tmp_path))
    assert sum(skips.write(tmp_path / "out").values()) == whole
    names = [each for each in tmp_path.rglob("*") if each.is_file() and each.suffix in (".json", ".db", ".jsonl")]
    kept = {each: each.read_bytes() for each in names if "out" not in each.parts}
    bad = 0
    for seed in range(100):
        for each, data in kept.items():
            each.write_bytes(data)
        kind(tmp_path, random.Random(f"{kind.__name__} {seed}"))
        made = TracingReader(strict_experiment)
        try:
            made.write(tmp_path / "out")
        except UserError:
            pytest.fail(f"seed {seed}: one bad row is left out, and the others are read")
        bad += made.left["could not be read"]
    assert bad > 10


def _experiment(folder: Path) -> Any:
    from ajet.config import load_experiment

    return load_experiment(folder / "x.yaml")


@pytest.mark.parametrize(
    "document",
    ['{"resourceSpans": [1]}', '{"resourceSpans": [{"scopeSpans": 3}]}', '{"resourceSpans": [{"scopeSpans": [1]}]}',
     '{"resourceSpans": [{"scopeSpans": [{"spans": -1}]}]}', '{"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]}'],
)  # fmt: skip
def test_what_is_no_otlp_is_named(tmp_path: Path, document: str) -> None:
    (tmp_path / "spans.jsonl").write_text(f"{document}\n{otlp(('t1', flat_span()))}\n")
    found = read_sources([tmp_path / "spans.jsonl"])
    assert len(found.traces) == 1 and len(found.bad) == 1 and "spans.jsonl:1" in found.bad[0][0]


@pytest.mark.parametrize("given", [{"args": -1}, {"args": "x"}, {"args": [MESSAGES], "kwargs": 3}])
def test_what_is_no_call_of_agentscope_s_is_named(tmp_path: Path, given: Any) -> None:
    told = {**AGENTSCOPE[0][2], "agentscope.function.input": json.dumps(given)}
    found = read_sources([studio(tmp_path / "studio.db", ("t1", "chat m1", told), *AGENTSCOPE[1:])])
    [(where, why)] = found.bad
    assert len(found.traces) == 2 and where.endswith("studio.db:1") and " of the agent's input is " in why


def test_feedback_that_is_none_is_a_bad_row_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(otlp(("t1", flat_span(**{"gen_ai.response.id": "r1"}))))
    rows = ["no json", '{"reply": "r1", "reward": 1e400}', '{"reply": "r1", "reward": true}', '{"liked": true}', "[1]"]
    (tmp_path / "said.jsonl").write_text("\n".join([*rows, '{"reply": "r1", "corrected": "Four."}']))  # no newline
    found = read_sources([tmp_path / "one.json"], [tmp_path / "said.jsonl"])
    assert [where.rpartition(":")[2] for where, _ in found.bad] == ["1", "2", "3", "4", "5"]
    assert found.traces[0].rating.corrected == "Four.", "the last line of a person's file counts without its newline"
    with pytest.raises(
        TaskError, match="5 rows cannot be read.*said.jsonl:1: no feedback: it is not valid JSON"
    ) as caught:
        reader(tmp_path, sources="one.json", feedback="said.jsonl").tasks("train")
    assert "on_bad_row=skip" in caught.value.do and "as ajet writes it" not in str(caught.value)
    assert reader(tmp_path, sources="one.json", feedback="said.jsonl", on_bad_row="skip").tasks("train")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TaskError, match="The feedback folder is a folder"):
        reader(tmp_path, sources="one.json", feedback="folder").tasks("train")
    with pytest.raises(TaskError, match="The feedback zz does not exist") as caught:
        reader(tmp_path, sources="one.json", feedback="zz").tasks("train")
    assert caught.value.do == "correct the path"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here that breaks off as it is read")
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """As one whose permissions are wrong, or whose disk is."""
    (tmp_path / "one.json").write_text(otlp(("t1", flat_span())))
    (tmp_path / "broken.jsonl").symlink_to("/proc/self/mem")
    for told in ({"sources": "broken.jsonl"}, {"sources": "one.json", "feedback": "broken.jsonl"}):
        with pytest.raises(TaskError, match="broken.jsonl cannot be read: Input/output error"):
            reader(tmp_path, **told).tasks("train")
    with pytest.raises(TaskError, match="broken.jsonl cannot be read"):
        read_tasks(tmp_path / "broken.jsonl", lambda row: Task(main_query="x"))
    (tmp_path / "sea.txt").symlink_to("/proc/self/mem")
    with pytest.raises(TaskError, match="sea.txt cannot be read"):
        read_document(tmp_path / "sea.txt")


def test_a_line_of_a_run_s_feedback_that_was_being_written_is_not_read(tmp_path: Path) -> None:
    observed(tmp_path / "run", ("Is it raining?", "Yes.", None))
    late = '{"session": "session-0", "liked": true}\n{"session": "session-0", "liked": fal'
    (tmp_path / "run" / "feedback.jsonl").write_text(late)
    found = read_sources([tmp_path / "run"])
    assert not found.bad and found.traces[0].rating.liked is True


def test_half_a_letter_is_marked_in_spans_and_refused_in_feedback(tmp_path: Path) -> None:
    asked = {"role": "user", "parts": [{"type": "text", "content": f"What is {HALF}?"}]}
    said = {"role": "assistant", "parts": [{"type": "text", "content": f"\ud83d\ude00 and {HALF}"}]}
    (tmp_path / "one.json").write_text(otlp(("t1", flat_span(asked, said, **{"gen_ai.response.id": "r1"}))))
    made = reader(tmp_path, sources="one.json")
    made.write(tmp_path / "out")
    [task] = made.tasks("train")
    assert (task.main_query, task.metadata["answer"]) == ("What is \ufffd?", "\U0001f600 and \ufffd")
    (tmp_path / "said.jsonl").write_text(json.dumps({"reply": "r1", "corrected": f"Four {HALF}."}) + "\n")
    with pytest.raises(TaskError, match="said.jsonl:1: no feedback: .*half of a surrogate pair"):
        reader(tmp_path, sources="one.json", feedback="said.jsonl").tasks("train")
