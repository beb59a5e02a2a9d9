"""What the debug verb and the chat print of an episode."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

import ajet
import ajet.commands.episode_panel as panel
from ajet.commands.episode_panel import find_hint, parse_traceback, printable, show_episode
from ajet.schema.call import Call
from ajet.schema.episode import Episode, Failure
from ajet.schema.task import Task
from ajet.schema.tool_use import ToolUse
from ajet.workflow import CommandWorkflow


def shown(monkeypatch: pytest.MonkeyPatch, failure: Failure) -> list[str]:
    out = io.StringIO()
    monkeypatch.setattr(panel, "console", Console(file=out, width=80))
    show_episode(Episode("u", Task(task_id="t"), 0, 1, "debug", "failed", failure=failure))
    return [line.strip("│ ") for line in out.getvalue().splitlines()]


def test_a_failure_is_said_once_with_the_frames_that_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = 'Traceback (most recent call last):\n  File "w.py", line 4, in execute\n    raise Bad(text)\n'
    lines = shown(monkeypatch, Failure("agent", "Bad", "one\ntwo", traceback=f"{frames}w.Bad: one\ntwo\n"))
    assert lines[1:-1] == [
        "✗ agent: Bad: one",
        "two",
        "w.py:4 in execute",
        "raise Bad(text)",
    ]
    assert "0 calls · 0 tokens sampled" in lines[-1]


def test_frames_that_are_cut_off_do_not_begin_with_carets(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = "call()\n    ^^^^\n" + "".join(f"line {n}\n" for n in range(5))
    lines = shown(monkeypatch, Failure("agent", "Bad", "text", traceback=f"{frames}w.Bad: text\n"))
    assert lines[2:-1] == [f"line {n}" for n in range(5)]


def test_tools_are_shown_with_their_time_and_what_they_failed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(panel, "console", Console(file=out, width=80))
    uses = [
        ToolUse("look", {"at": 1}, "x", "", 1.0, 1.25, server="eyes"),
        ToolUse("call", {}, "gone", "", 1.0, 3.5, error="transport"),
    ]
    show_episode(Episode("u", Task(task_id="t"), 0, 1, "debug", tool_uses=uses))
    assert 'eyes: look({"at":1}) 0.25 s' in out.getvalue() and "call({}) 2.50 s ✗ transport" in out.getvalue()


def call_of(agent: str, asked: list[int], reply: int) -> Call:
    none, floats = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return Call(0, agent, agent, True, None, 0, none, none, floats, floats, (), "stop", tuple(asked), None, reply)


def test_of_several_agents_each_is_named_where_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(panel, "console", Console(file=out, width=80))
    messages = [{"role": role, "content": text} for role, text in zip("ua" * 3, "abcdef", strict=True)]
    calls = [call_of("solver", [0], 1), call_of("critic", [2], 3), call_of("critic", [2, 3, 4], 5)]
    show_episode(Episode("u", Task(task_id="t"), 0, 1, "debug", messages=messages, calls=calls))
    lines = [line.strip("│ ") for line in out.getvalue().splitlines()][1:-1]
    assert lines == ["solver is called", "u: a", "a: b", "critic is called", "u: c", "a: d", "u: e", "a: f"]
    out.truncate(0)
    show_episode(Episode("u", Task(task_id="t"), 0, 1, "debug", messages=messages, calls=calls[:1]))
    assert "is called" not in out.getvalue()


def lines_of(monkeypatch: pytest.MonkeyPatch, episode: Episode) -> list[str]:
    out = io.StringIO()
    monkeypatch.setattr(panel, "console", Console(file=out, width=80))
    show_episode(episode)
    return [line.strip("│ ") for line in out.getvalue().splitlines()][1:-1]


def test_calls_with_the_same_reply_all_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [{"role": role, "content": text} for role, text in (("u", "a"), ("a", "yes"), ("u", "b"), ("u", "c"))]
    calls = [call_of("x", [0], 1), call_of("x", [2], 1), call_of("x", [2, 1, 3], 1)]
    lines = lines_of(monkeypatch, Episode("u", Task(task_id="t"), 0, 1, "debug", messages=messages, calls=calls))
    assert lines == ["u: a", "a: yes", "u: b", "a: yes", "u: c", "a: yes"]


def test_panel_marks_each_reply_that_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [{"role": role, "content": text} for role, text in (("u", "a"), ("a", "y"), ("u", "b"), ("u", "c"))]
    calls = [call_of("x", [0], 1), call_of("x", [2], 1), call_of("x", [2, 1, 3], 1)]
    calls[1].finish, calls[1].extra["cut_by"] = "length", "max_tokens"
    calls[2].finish = "length"
    lines = lines_of(monkeypatch, Episode("u", Task(task_id="t"), 0, 1, "debug", messages=messages, calls=calls))
    marks = [at for at, line in enumerate(lines) if "cut" in line]
    assert marks == [4, 7] and lines[4].endswith("max_tokens") and lines[3] == lines[6] == "a: y"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"final_answer": " b\n"}, []),
        ({"final_answer": [{"type": "text", "text": "b"}]}, []),
        ({"final_answer": "[{'type': 'text', 'text': 'b'}]"}, []),
        ({"final_answer": "sorry"}, ["final_answer: sorry"]),
        ({"final_answer": 3}, ["final_answer: 3"]),
        ({"final_answer": ""}, ["final_answer: (empty)"]),
        ({"steps": 3}, []),
    ],
)
def test_what_the_judge_was_given_is_shown_where_it_is_not_what_was_said_last(monkeypatch, metadata, said):
    messages = [{"role": "u", "content": "a"}, {"role": "a", "content": "b"}]
    given = {"messages": messages, "calls": [call_of("x", [0], 1)], "metadata": metadata}
    assert lines_of(monkeypatch, Episode("u", Task(task_id="t"), 0, 1, "debug", **given)) == ["u: a", "a: b", *said]


def test_hints_fit_what_failed() -> None:
    assert "an `except`" in find_hint(Failure("agent", "calls_refused", "its calls were refused: …"))
    assert "rollout.episode_timeout" in find_hint(Failure("judge", "timeout", "the judge did not end"))
    lacks = find_hint(Failure("judge", "JudgeFailure", "right raised KeyError: 'final_answer'"))
    assert "metadata['final_answer']" in lacks and "return WorkflowOutput(metadata=" in lacks
    assert "judge" in find_hint(Failure("judge", "JudgeFailure", "it raised"))
    pair = Failure("agent", "wrong_type", "agent returned a tuple")
    assert "WorkflowOutput(reward=" in find_hint(pair)
    silent = Failure("agent", "no_model_call", "the workflow ended without calling the model")
    assert "OPENAI_BASE_URL" in find_hint(silent, CommandWorkflow) and "OPENAI_BASE_URL" not in find_hint(silent)


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        (Failure("engine", "model_call", "http://h:1/v1 did not answer: ConnectError", own=True), "model server"),
        (Failure("judge", "JudgeFailure", "no judge answers: m at http://h:1/v1 …", True, own=True), "judge"),
        (Failure("environment", "EnvironmentFailure", "the service at http://h:1: …", True, own=True), "environment"),
    ],
)
def test_down_server_of_the_users_is_no_fault_of_ajet(failure: Failure, named: str) -> None:
    hint = find_hint(failure)
    assert hint.startswith("start ") and named in hint and ("address" in hint or "base_url" in hint)
    assert "ajet" not in hint


OTHERS = '  File "/env/lib/python3.11/site-packages/openai/_base.py", line 9, in post\n    raise Refused()\n'
CHAIN = (
    f'Traceback (most recent call last):\n  File "{ajet.__file__}", line 1, in perform\n    await run()\n'
    '  File "/home/me/site/w.py", line 4, in execute\n    await self.ask(\n    ~~~~^^^^\n'
    f"{OTHERS}{OTHERS}openai.Refused: no\n\nDuring handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "/home/me/site/w.py", line 6, in execute\n    raise Lost from error\n'
    '  File "<string>", line 3, in made\n  | File "/home/me/site/tools.py", line 2, in look\n  |     1 / 0\nw.Lost\n'
)


def test_own_frames_are_told_from_those_of_packages_python_and_ajet() -> None:
    frames = parse_traceback(CHAIN)
    assert [(frame.place, frame.function, frame.code) for frame in frames.own] == [
        ("/home/me/site/w.py:4", "execute", "await self.ask("),
        ("/home/me/site/w.py:6", "execute", "raise Lost from error"),
        ("/home/me/site/tools.py:2", "look", "1 / 0"),
    ]
    assert frames.others == {"openai": 2, "ajet": 1, "Python": 1}


def test_frames_of_others_are_counted_and_the_hint_names_the_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure("agent", "Lost", "w.Lost", traceback=CHAIN)
    assert "_base.py" not in "\n".join(shown(monkeypatch, failure))
    assert shown(monkeypatch, failure)[-2] == "(not shown: 2 of openai, 1 of ajet, 1 of Python)"
    assert find_hint(failure).startswith("correct /home/me/site/tools.py:2;")
    nowhere = Failure(
        "agent", "Lost", "no", traceback=f"Traceback (most recent call last):\n{OTHERS}openai.Refused: no\n"
    )
    assert "none of its own lines" in find_hint(nowhere) and "raise Refused()" in shown(monkeypatch, nowhere)


def test_a_reward_that_is_none_is_no_traceback_of_ajets_and_a_lost_client_has_a_way_out(monkeypatch) -> None:
    reward = Failure("agent", "RewardFailure", "the workflow's reward is nan", traceback=f"Traceback:\n{OTHERS}")
    assert shown(monkeypatch, reward)[1:-1] == ["✗ agent: RewardFailure: the workflow's reward is nan"]
    assert find_hint(reward).startswith("let `execute` return a finite number")
    lost = find_hint(Failure("agent", "APIConnectionError", "Connection error.", traceback=CHAIN))
    assert "/home/me/site/tools.py:2;" in lost and lost.endswith("`tuner.as_oai_baseurl_apikey()`")


def test_what_a_judge_gave_is_no_traceback_of_ajets_and_what_is_not_installed_is_named(monkeypatch) -> None:
    said = shown(monkeypatch, Failure("judge", "JudgeFailure", "it is 'good'", traceback=f"Traceback:\n{OTHERS}"))
    assert said[1:-1] == ["✗ judge: JudgeFailure: it is 'good'"]
    lacking = Failure("agent", "ModuleNotFoundError", "No module named 'textarena.envs'", traceback=CHAIN)
    assert find_hint(lacking).startswith("install textarena, ") and find_hint(lacking).endswith(" textarena")
    part = Failure("agent", "ModuleNotFoundError", "No module named 'numpy.nothing'", traceback=CHAIN)
    assert not find_hint(part).startswith("install")


def test_a_failure_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, Failure("agent", "no_model_call", "it never called"))[1:-1] == [
        "✗ agent: no_model_call: it never called"
    ]


def test_a_terminal_gets_nothing_that_it_would_obey() -> None:
    assert printable("a\x1b[2Jb\r\n\tc\u202e") == "a�[2Jb�\n\tc�"
    assert re.fullmatch(r"\[/bold\] \[red\]", printable("[/bold] [red]"))
