"""The reader `tracing`: three kinds of sources, what people said, what is marked, what goes where."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from ajet.config import load_experiment
from ajet.record.episodes import EpisodeFiles
from ajet.schema.call import Call
from ajet.schema.episode import Episode, Verdict
from ajet.schema.errors import TaskError, UserError
from ajet.schema.task import Task
from ajet.task_reader import open_reader
from ajet.task_reader.contamination import find_overlap
from ajet.train.sft.rows import read_files
from ajet_datagen.tracing import TracingReader
from ajet_datagen.tracing.sources import read_sources

ASKED = {"role": "user", "parts": [{"type": "text", "content": "What is 1 + 2?"}]}
SAID = {"role": "assistant", "parts": [{"type": "text", "content": "Three."}], "finish_reason": "stop"}


def flat_span(asked=ASKED, said=SAID, operation="chat", **more):
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.request.model": "m1",
        "gen_ai.input.messages": json.dumps([asked]),
        "gen_ai.output.messages": json.dumps([said]),
        **more,
    }


def otlp(*spans, events=()):
    listed = [
        {
            "traceId": trace, "spanId": f"s{at}", "name": "chat m1", "startTimeUnixNano": str(at),
            "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
            "events": list(events),
        }
        for at, (trace, attributes) in enumerate(spans)
    ]  # fmt: skip
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": listed}]}]})


def studio(path: Path, *rows):
    database = sqlite3.connect(path)
    database.execute(
        "CREATE TABLE span_table "
        "(id TEXT, traceId TEXT, spanId TEXT, name TEXT, startTimeUnixNano TEXT, attributes TEXT)"
    )
    database.executemany(
        "INSERT INTO span_table VALUES (?, ?, ?, ?, ?, ?)",
        [(str(at), trace, str(at), name, str(at), json.dumps(told)) for at, (trace, name, told) in enumerate(rows)],
    )
    database.commit()
    database.close()
    return path


def reader(folder: Path, **settings):
    on_bad_row, seed = settings.pop("on_bad_row", "error"), settings.pop("seed", 0)
    told = {"type": "tracing", "on_bad_row": on_bad_row, "tracing": settings}
    (folder / "x.yaml").write_text(json.dumps({"ajet": {"backbone": "debug", "seed": seed, "task_reader": told}}))
    return TracingReader(load_experiment(folder / "x.yaml"))


def test_agentscope_of_every_version(tmp_path):
    tools = [{"type": "function", "function": {"name": "add"}}]
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    system = {"role": "system", "name": "system", "content": [{"type": "text", "text": "Be brief."}]}
    user = {"role": "user", "name": "user", "content": [{"type": "text", "text": "1 + 2?"}]}
    went_on = [
        system, user, {"role": "assistant", "name": "F", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "3", "name": "add"},
    ]  # fmt: skip
    called = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1}}]}

    def chat(messages, said):  # as agentscope 1.0.21 writes it: no gen_ai.input.messages
        return {
            "gen_ai.operation.name": "chat", "gen_ai.request.model": "m1", "gen_ai.conversation.id": '"run-1"',
            "gen_ai.tool.definitions": '[{"type": "function", "name": "add"}]',
            "agentscope.function.input": json.dumps({"args": [messages], "kwargs": {"tools": tools}}),
            "gen_ai.output.messages": json.dumps([said]),
        }  # fmt: skip

    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "Friday"}
    agent |= flat_span(operation="invoke_agent")
    quoted = "Msg(id='x', name='user', content='It\\'s 2 + 2, is it?', role='user', metadata=None, timestamp='t')"
    said = "Msg(id='y', name='F', content=[{'type': 'text', 'text': 'Four.'}], role='assistant', metadata=None)"
    file = studio(
        tmp_path / "studio.db",
        ("t1", "chat m1", chat([system, user], called)),
        ("t1", "chat m1", chat(went_on, SAID)),
        ("t1", "invoke_agent Friday", agent),
        ("t1", "execute_tool add", {"gen_ai.operation.name": "execute_tool"}),
        ("t2", "ReActAgent.reply", {"input": {"args": [], "kwargs": {"msg": quoted}}, "output": said}),
        ("t3", "ReActAgent.reply", {"gen_ai": {
            "input": {"messages": json.dumps(ASKED)}, "output": {"messages": json.dumps(SAID)}}}),
    )  # fmt: skip
    found = read_sources([file])
    assert not found.bad and found.silent == 1
    whole, first, second = found.traces
    assert [each["role"] for each in whole.messages] == ["system", "user", "assistant", "tool"]
    assert whole.messages[2]["tool_calls"] == calls and whole.tools[0]["function"]["name"] == "add"
    assert whole.reply["content"] == "Three." and whole.session == "run-1" and whole.agent == "Friday"
    assert (first.question, first.reply["content"]) == ("It's 2 + 2, is it?", "Four.")
    assert (second.question, second.reply["content"]) == ("What is 1 + 2?", "Three.")
    assert read_sources([file]).traces == found.traces


def test_opentelemetry_with_feedback(tmp_path):
    score = {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.75}}
    label = {"key": "gen_ai.evaluation.score.label", "value": {"stringValue": "thumbs_up"}}
    events = [{"name": "gen_ai.evaluation.result", "attributes": [score, label]}]
    whole = {"gen_ai.response.id": "r1", "gen_ai.conversation.id": "c1"}
    (tmp_path / "one.json").write_text(otlp(("t1", flat_span(**whole)), events=events))
    other = otlp(
        ("t2", flat_span({**ASKED, "parts": [{"type": "text", "content": "2 + 2?"}]}, **{"gen_ai.response.id": "r2"}))
    )
    silent = otlp(("t3", {"gen_ai.operation.name": "chat"}))
    image = otlp(("t4", flat_span({"role": "user", "parts": [{"type": "blob", "content": "…"}]})))
    (tmp_path / "lines.jsonl").write_text(f"{other}\n{silent}\nno json\n{image}\n")
    (tmp_path / "said.jsonl").write_text('{"reply": "r2", "corrected": "Four."}\n{"reply": "r9", "liked": true}\n')
    found = read_sources([tmp_path / "one.json", tmp_path / "lines.jsonl"], [tmp_path / "said.jsonl"])
    first, second = found.traces
    assert (first.rating.reward, first.rating.liked, first.session) == (0.75, True, "c1")
    assert second.rating.corrected == "Four." and second.is_rated_alone and found.loose == 1 and found.silent == 1
    assert [why.split(" of ")[0] for _, why in found.bad] == ["the line is not valid JSON", "a part"]
    assert "lines.jsonl:3" in found.bad[0][0] and "span s0" in found.bad[1][0]


def test_bad_rows_stop_the_reading_or_are_counted(tmp_path):
    (tmp_path / "spans.jsonl").write_text(f"{otlp(('t1', flat_span()))}\nno json\n")
    with pytest.raises(TaskError, match=r"1 rows .*spans.jsonl:2: the line is not valid JSON"):
        reader(tmp_path, sources="spans.jsonl").tasks("train")
    counted = reader(tmp_path, sources="spans.jsonl", on_bad_row="skip")
    assert [task.main_query for task in counted.tasks("train")] == ["What is 1 + 2?"]
    assert counted.left["could not be read"] == 1
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(TaskError, match="neither SQLite nor JSON"):
        reader(tmp_path, sources="text.txt").tasks("train")
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE other (a)").connection.close()
    with pytest.raises(TaskError, match="not a database of spans: no such table: span_table"):
        reader(tmp_path, sources="empty.db").tasks("train")
    (tmp_path / "silent.json").write_text(otlp(("t3", {"gen_ai.operation.name": "chat"})))
    with pytest.raises(TaskError, match="no replies") as caught:
        reader(tmp_path, sources="silent.json").tasks("train")
    assert "CAPTURE_MESSAGE_CONTENT" in caught.value.do


def said_call(messages, name, index=0):
    none, floats = np.empty(0, np.int32), np.empty(0, np.float32)
    return Call(index, "agent", "agent", False, None, 0, none, none, floats, floats, (), "stop", messages, None,
                len(messages), extra={"id": name, "model": "m1"})  # fmt: skip


def observed(folder: Path, *said, split="debug"):
    """A run in which each of `said` is a session of one call: (question, answer, verdict)."""
    episodes = []
    for at, (question, answer, rows) in enumerate(said):
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        call = said_call((0,), f"r{at}")
        verdict = Verdict(None, details={"feedback": rows}) if rows else None
        task = Task(main_query=question, task_id=f"session-{at}")
        episodes.append(Episode(f"u{at}", task, 0, 0, split, calls=[call], messages=messages, verdict=verdict))
    (folder / "episodes").mkdir(parents=True)
    EpisodeFiles(folder / "episodes").write(0, split, episodes)
    return folder


def test_observed_runs_become_tasks_rows_and_pairs(tmp_path):
    observed(
        tmp_path / "run",
        ("What is 1 + 2?", "Three.", [{"session": "session-0", "liked": True}]),
        ("What is 1 + 2?", "Five.", [{"session": "session-1", "liked": False}]),
        ("Name the capital of France.", "Lyon.", [{"reply": "r2", "corrected": "Paris."}]),
        ("Who wrote Faust?", "Goethe.", None),
        ("How many legs has a spider?", "Six.", [{"session": "session-4", "liked": False}]),
    )
    (tmp_path / "run" / "feedback.jsonl").write_text('{"session": "session-3", "reward": 0.9}\n')
    made = reader(tmp_path, sources="run", validation_share=0.0)
    tasks = {task.main_query: task.metadata for task in made.tasks("train")}
    assert len(tasks) == 4 and made.left["asked again"] == 1
    assert tasks["What is 1 + 2?"]["answer"] == "Three." and tasks["What is 1 + 2?"]["reward"] == 1.0
    assert tasks["Name the capital of France."]["answer"] == "Paris."
    assert tasks["Who wrote Faust?"]["reward"] == 0.9 and "answer" not in tasks["How many legs has a spider?"]
    counts = made.write(tmp_path / "out")
    assert counts == {
        "tasks.train.jsonl": 4, "rows.train.jsonl": 3, "pairs.train.jsonl": 2,
        "tasks.validation.jsonl": 0, "rows.validation.jsonl": 0, "pairs.validation.jsonl": 0,
    }  # fmt: skip
    rows = read_files("rows.train.jsonl", tmp_path / "out", pairs=False, key="")  # as `ajet sft` reads them
    assert [row.conversations[0].messages[-1]["content"] for row in rows] == ["Three.", "Paris.", "Goethe."]
    both = read_files("pairs.train.jsonl", tmp_path / "out", pairs=True, key="")
    assert [[talk.messages[-1]["content"] for talk in row.conversations] for row in both] == [
        ["Paris.", "Lyon."], ["Three.", "Five."],
    ]  # fmt: skip
    only = reader(tmp_path, sources="run", validation_share=0.0, only="liked")
    assert len(only.tasks("train")) == 3 and only.left["not liked"] == 2
    with pytest.raises(TaskError, match="All traces are dropped: ") as refused:
        reader(tmp_path, sources="run", agents=["nobody"]).write(tmp_path / "none")
    assert "5 " in refused.value.what and not (tmp_path / "none").exists()


def test_an_episode_that_several_steps_trained_on_is_one(tmp_path):
    files = EpisodeFiles(observed(tmp_path / "run", ("What is 1 + 2?", "Three.", None), split="train") / "episodes")
    files.write(1, "train", files.read(0))
    assert len(reader(tmp_path, sources="run", validation_share=0.0).traces("train")) == 1


def test_late_feedback_is_of_the_one_that_it_was_given_to(tmp_path):
    for at, name in enumerate(("one", "two")):
        observed(tmp_path / name, ("Is it raining?", f"Answer {at}.", None))
    late = {"session": "session-0", "episode": "u0", "liked": True}
    (tmp_path / "one" / "feedback.jsonl").write_text(json.dumps(late) + "\n")
    other = tmp_path / "two" / "episodes"
    for file in other.rglob("*.jsonl"):  # the same name, used again
        file.write_text(file.read_text().replace('"u0"', '"u1"'))
    found = read_sources([tmp_path])
    assert {(trace.reply["content"], trace.rating.liked) for trace in found.traces} == {
        ("Answer 0.", True), ("Answer 1.", None),
    }  # fmt: skip
    assert found.loose == 0


def test_a_rated_reply_in_the_middle_is_learned_alone(tmp_path):
    messages = [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": "Three."},
                {"role": "user", "content": "And 2 + 2?"}, {"role": "assistant", "content": "Four."}]  # fmt: skip
    calls = [said_call(tuple(range(2 * at + 1)), f"r{at}", index=at) for at in (0, 1)]
    rows = [{"reply": "r1", "liked": True}]
    verdict = Verdict(None, details={"feedback": rows})
    episode = Episode("u", Task(main_query="1 + 2?"), 0, 0, "debug", calls=calls, messages=messages, verdict=verdict)
    (tmp_path / "episodes").mkdir()
    EpisodeFiles(tmp_path / "episodes").write(0, "debug", [episode])
    made = reader(tmp_path, sources=".", validation_share=0.0)
    assert len(made.traces("train")) == 1  # the first call is part of the second
    made.write(tmp_path / "out")
    [row] = read_files("rows.train.jsonl", tmp_path / "out", pairs=False, key="")
    assert row.conversations[0].learned == {3}
    [task] = made.tasks("train")
    assert task.main_query == "And 2 + 2?" and [each["role"] for each in task.init_messages] == [
        "user",
        "assistant",
        "user",
    ]


MASK = """
def mask_text(text):
    return text.replace("ann@mail.example.org", "<EMAIL>")


def fail(text):
    raise KeyError("no table of names")


def lose(text):
    return None
"""


def test_masking_function_gets_every_text(tmp_path):
    (tmp_path / "mask.py").write_text(MASK)
    write_spans_with_mail(tmp_path)
    sources = {"sources": "x.json", "feedback": "said.jsonl"}
    made = reader(tmp_path, mask="mask.py->mask_text", **sources)
    [trace] = made.traces("train")
    assert trace.reply["tool_calls"][0]["function"]["arguments"] == '{"to": "<EMAIL>"}'
    assert trace.rating.corrected == "<EMAIL>: hi" and trace.session == "<EMAIL>"
    made.write(tmp_path / "out")
    assert all("ann@" not in file.read_text() for file in (tmp_path / "out").iterdir())
    plain = reader(tmp_path, **sources)
    assert "ann@mail" in plain.tasks("train")[0].main_query


@pytest.mark.parametrize(("name", "said"), [("fail", "no table of names"), ("lose", "NoneType")])
def test_failing_masking_function_is_named(tmp_path, name, said):
    (tmp_path / "mask.py").write_text(MASK)
    write_spans_with_mail(tmp_path)
    with pytest.raises(TaskError, match=said) as refused:
        reader(tmp_path, sources="x.json", mask=f"mask.py->{name}").tasks("train")
    assert "task_reader.tracing.mask" in str(refused.value)


@pytest.mark.parametrize("removed", [{"deidentify": True}, {"names": ["Ann"]}])
def test_removed_masking_rules_are_refused(tmp_path, removed):
    with pytest.raises(UserError, match="mask.py->mask_text"):
        reader(tmp_path, sources="x.json", **removed)


def write_spans_with_mail(folder: Path) -> None:
    """Write spans and feedback that hold a mail address in texts, tool arguments and the session's name."""
    arguments = '{"to": "ann@mail.example.org"}'
    (folder / "x.json").write_text(otlp(("t1", flat_span(
        {"role": "user", "parts": [{"type": "text", "content": "Write to ann@mail.example.org"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "send", "arguments": arguments}]},
        **{"gen_ai.conversation.id": "ann@mail.example.org"}))))  # fmt: skip
    (folder / "said.jsonl").write_text('{"session": "ann@mail.example.org", "corrected": "ann@mail.example.org: hi"}\n')


def test_no_question_is_in_both_splits(tmp_path):
    said = []
    for number in range(20):
        words = f"Please tell me what the sum of {number * 37 + 100} and {number * 91 + 7} comes to"
        said += [(f"{words}?", "a", None), (f"{words.upper()} ?", "b", None), (f"Hi! {words}, ok?", "c", None)]
    observed(tmp_path / "run", *said)
    made = reader(tmp_path, sources="run", similarity_threshold=0.9)
    train, held_out = made.tasks("train"), made.tasks("validation")
    assert train and held_out and not find_overlap(train, held_out).found
    numbers = [{word for word in task.main_query.split() if word.isdigit()} for task in (*train, *held_out)]
    assert all(numbers)
    again = reader(tmp_path, sources="run", similarity_threshold=0.9)
    assert again.tasks("train") == train and again.tasks("validation") == held_out


def test_numbers_make_two_questions_of_what_is_alike_else(tmp_path):
    """As where a model writes tasks."""
    tale = "A farmer has {} hens that lay 3 eggs a day each; how many eggs do all of them lay in a whole week?"
    observed(tmp_path / "run", *((tale.format(count), "Many.", None) for count in (12, 40, 1200)))
    made = reader(tmp_path, sources="run", validation_share=0.34)
    assert (len(made.tasks("train")), len(made.tasks("validation"))) == (2, 1)
    words = reader(tmp_path, sources="run", validation_share=0.34, numbers="alike")
    assert (len(words.tasks("train")), len(words.tasks("validation"))) == (3, 0), "one group is not parted"


def test_the_seed_and_nothing_else_decides_the_split(tmp_path):
    said = [(f"How high is mountain {number * 37} of {number * 91}?", "High.", None) for number in range(20)]
    observed(tmp_path / "run", *said)
    observed(tmp_path / "turned", *reversed(said))

    def held_out(seed, source="run"):
        made = reader(tmp_path, sources=source, seed=seed, similarity_threshold=1.0, validation_share=0.25)
        found = {task.main_query for task in made.tasks("validation")}
        assert len(found) == 5 and len(made.tasks("train")) == 15
        return found

    assert held_out(3) == held_out(3) == held_out(3, "turned")
    assert len({frozenset(held_out(seed)) for seed in range(8)}) == 8, "another seed holds out other questions"


@pytest.mark.parametrize(
    ("settings", "found", "why"),
    [
        ({"agents": ["Friday"]}, {"1 + 1?", "2 + 2?"}, {"another agent": 1}),
        ({"models": ["m2"]}, {"2 + 2?", "3 + 3 + 3 + 3?"}, {"another model": 1}),
        ({"agents": ["Friday"], "models": ["m2"]}, {"2 + 2?"}, {"another agent": 1, "another model": 1}),
        ({"longest": 6}, {"1 + 1?", "2 + 2?"}, {"too long": 1}),
        ({"longest": 14}, {"1 + 1?", "2 + 2?", "3 + 3 + 3 + 3?"}, {}),
    ],
)
def test_only_the_agents_models_and_lengths_that_are_wanted(tmp_path, settings, found, why):
    def span(trace, asked, agent, model):
        question = {"role": "user", "parts": [{"type": "text", "content": asked}]}
        return trace, flat_span(question, **{"gen_ai.agent.name": agent, "gen_ai.request.model": model})

    spans = [span("t1", "1 + 1?", "Friday", "m1"), span("t2", "2 + 2?", "Friday", "m2"),
             span("t3", "3 + 3 + 3 + 3?", "Monday", "m2")]  # fmt: skip
    (tmp_path / "x.json").write_text(otlp(*spans))
    made = reader(tmp_path, sources="x.json", validation_share=0.0, **settings)
    assert {task.main_query for task in made.tasks("train")} == found
    assert made.left == why


def test_what_a_longer_conversation_answers_is_not_held_out(tmp_path):
    said = [("Which is the longest river?", "The Nile."), ("And the highest mountain?", "Everest.")]
    messages = [
        {"role": role, "content": text} for pair in said for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    calls = [said_call(tuple(range(2 * at + 1)), f"r{at}", index=at) for at in (0, 1)]
    verdict = Verdict(None, details={"feedback": [{"reply": "r0", "liked": True}, {"reply": "r1", "liked": True}]})
    task = Task(main_query=said[0][0])
    episode = Episode("u", task, 0, 0, "debug", calls=calls, messages=messages, verdict=verdict)
    (tmp_path / "episodes").mkdir()
    EpisodeFiles(tmp_path / "episodes").write(0, "debug", [episode])
    for seed in range(8):
        made = reader(tmp_path, sources=".", seed=seed)
        assert [trace.id for trace in made.traces("train")] == ["r0"]
        assert [trace.id for trace in made.traces("validation")] == ["r1"]


def test_agentjets_keys_are_read(tmp_path):
    told = {"base_url": "studio.db", "train_output_path": "tasks.jsonl", "filters": [{"type": "llm_evaluate"}]}
    studio(tmp_path / "studio.db", ("t", "ReActAgent.reply", flat_span(operation="invoke_agent")))
    tree = {"ajet": {"task_reader": {"type": "tracing", "feedback_tracing": told}}}
    (tmp_path / "x.yaml").write_text(json.dumps(tree))
    [task] = open_reader(load_experiment(tmp_path / "x.yaml")).tasks("train")
    assert (task.main_query, task.metadata["answer"]) == ("What is 1 + 2?", "Three.")
