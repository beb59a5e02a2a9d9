"""What crosses between the rollout and a worker: data comes out as it went in, and nothing else is believed."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ajet.config.view import View
from ajet.environment.services import gym_env
from ajet.environment.services.gym_env import GymEnv
from ajet.environment.services.wire import EnvService
from ajet.rollout import bounds
from ajet.rollout.failure import classify, failed
from ajet.rollout.isolation.channel import LONGEST, Channel, Message
from ajet.rollout.isolation.loops_prints import CHATTY, Prints, Tail
from ajet.rollout.isolation.loops_worker import SharedLine, SharedPlayer, Talk
from ajet.rollout.isolation.messages import (
    Home,
    decode_attempt,
    decode_ended,
    decode_printed,
    decode_question,
    encode_attempt,
    encode_failure,
    encode_output,
    encode_question,
)
from ajet.rollout.isolation.values import decoded, encoded
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.errors import ToolFailure
from ajet.schema.frames import packed
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.workflow.ambient import Ambient
from ajet.workflow.resources import Resources

DATA = {
    "texts": ["ä", "\ud800", ""], "numbers": [1, -2.5, 10**40, True, None], "tuple": (1, (2,)), "set": {1, "a", (3,)},
    "frozen": frozenset({1}), "bytes": b"\x00\xff", "date": date(2026, 1, 2),
    "time": datetime(2026, 1, 2, tzinfo=timezone.utc),
    "path": Path("a/b"), "keys": {1: "one", (2, 3): "two", None: "none"}, "looks tagged": {"$set": [1]}, "$": {"$x": 0},
}  # fmt: skip


@dataclass(frozen=True)
class Own:
    """A person's own object."""

    x: int


def test_data_comes_out_as_it_went_in() -> None:
    again = decoded(encoded(DATA))
    assert again == DATA
    assert [type(value) for value in again.values()] == [
        type(Path()) if isinstance(value, Path) else type(value) for value in DATA.values()
    ]
    numbers = decoded(encoded([math.nan, math.inf, -math.inf]))
    assert math.isnan(numbers[0]) and numbers[1:] == [math.inf, -math.inf]


def test_the_rest_becomes_what_the_record_makes_of_it() -> None:
    found = decoded(encoded({"a": np.arange(3), "f": np.float32(1.5), "task": Task(main_query="q"), "own": Own(3)}))
    assert (found["a"], found["f"], found["task"]["main_query"], found["own"]) == ([0, 1, 2], 1.5, "q", "Own(x=3)")
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    assert "nested too deeply" in str(decoded(encoded(deep)))
    with pytest.raises(TypeError, match="a Own, which is no data"):
        encoded({"own": [Own(3)]}, exact=True)


def test_an_attempt_is_the_same_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    env = GymEnv(EnvService("http://there", "kind", "secret"), "7")
    env.instance_id, env.until = "i", 5.0
    task = Task(main_query="q", task_id="7", metadata={"answer": (1, 2)}, own_field=b"x")
    given = WorkflowTask(task=task, episode_uuid="u", task_tag="T", task_thread_index=2, gym_env=env)
    monkeypatch.setattr(gym_env, "time", SimpleNamespace(time=lambda: 1000.0, monotonic=lambda: 2.0))
    told = encode_attempt(given, View({"ajet": {"a": [1]}, 5: "x"}), 2.5)
    monkeypatch.setattr(gym_env, "time", SimpleNamespace(time=lambda: 1001.0, monotonic=lambda: 70.0))
    found, config, began = decode_attempt(decoded(told))
    assert (found.task, found.task_tag, found.task_thread_index, began) == (task, "T", 2, 2.5)
    assert (config.ajet.a, config[5]) == ([1], "x")  # type: ignore[index]
    assert (found.gym_env.service, found.gym_env.instance_id, found.gym_env.until) == (env.service, "i", 72.0)
    assert pickle.loads(pickle.dumps(found.gym_env)).until == 72.0
    with pytest.raises(TypeError, match="no data"):
        encode_attempt(WorkflowTask(task=Task(metadata={"photo": object()})), View({}), 0.0)


def test_an_output_is_one_elsewhere_or_is_refused_where_it_was_made() -> None:
    output = WorkflowOutput(reward=[1, 2], is_success=True, metadata={"seen": {1}}, log_metrics={"n": 1}, more=(1,))
    output.metadata[3] = Own(1)  # type: ignore[index]
    ended = decode_ended(decoded(encode_output(output, ["threads"])))
    assert isinstance(ended.outcome, WorkflowOutput) and ended.left == ["threads"]
    assert ended.outcome.metadata == {"seen": {1}, "3": "Own(x=1)"} and ended.outcome.model_extra == {"more": (1,)}
    assert (ended.outcome.reward, ended.outcome.is_success) == ([1.0, 2.0], True)
    output.reward = "good"  # type: ignore[assignment]
    with pytest.raises((TypeError, ValueError), match="number"):
        encode_output(output, [])


def test_a_failure_is_bounded_and_typed() -> None:
    failure = Failure("tool", "Odd", "m" * 100_000, retryable=True, policy=True)
    ended = decode_ended(decoded(encode_failure(failure, [])))
    assert isinstance(ended.outcome, Failure) and "more characters were cut" in ended.outcome.message
    assert (ended.outcome.boundary, ended.outcome.retryable, ended.outcome.policy) == ("tool", True, True)


ENDS: list[Any] = [
    None, [], {}, {"left": []}, {"left": 3, "output": {}}, {"left": [], "output": []},
    {"left": [], "output": {"reward": "x"}}, {"left": [], "output": {"reward": {}}},
    {"left": [], "failure": {"boundary": "nobody", "kind": "", "message": "", "traceback": ""}}, {"failure": 1},
]  # fmt: skip


class OwnNumber:
    """A number of a person's own."""

    def __float__(self) -> float:
        return 0.5


@pytest.mark.parametrize("reward", [Decimal("0.5"), Fraction(1, 2), OwnNumber()])
def test_a_reward_that_was_set_later_is_a_number_elsewhere(reward: Any) -> None:
    """As it is where nothing is handed on: it was its `repr`, at which its process was ended."""
    output = WorkflowOutput()
    output.reward = reward
    ended = decode_ended(decoded(encode_output(output, [])))
    assert isinstance(ended.outcome, WorkflowOutput) and ended.outcome.reward == 0.5


class OwnFailure(ToolFailure):
    """One with a side of a person's own."""

    boundary = "mine"  # type: ignore[assignment]


@pytest.mark.parametrize(("problem", "boundary"), [(OwnFailure("odd"), "agent"), (ToolFailure("odd"), "tool")])
def test_a_failure_of_a_class_of_ones_own_can_be_read(problem: ToolFailure, boundary: str) -> None:
    problem.retryable = 1  # type: ignore[assignment]
    ended = decode_ended(decoded(encode_failure(classify(problem), [])))
    assert isinstance(ended.outcome, Failure)
    assert (ended.outcome.boundary, ended.outcome.retryable, ended.outcome.policy) == (boundary, True, False)


@pytest.mark.parametrize("body", [None, "x", ["x"], ["x", -1], ["x", 1.5], [3, 0], ["x", True]])
def test_what_is_nothing_printed_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match="nothing printed"):
        decode_printed(body)


def test_what_is_printed_is_bounded() -> None:
    assert decode_printed(["x" * 10_000, 5]) == ("x" * bounds.PRINTED, 10_005 - bounds.PRINTED)


@pytest.mark.parametrize(("kind", "asked"), [("open", [1]), ("replay", (5, {})), ("endpoint", ("a", 3, None))])
def test_names_that_are_no_texts_are_refused_where_they_are_asked_for(kind: str, asked: Any) -> None:
    with pytest.raises(TypeError, match="named by texts"):
        encode_question(kind, asked)


@pytest.mark.parametrize("body", ENDS)
def test_what_is_no_end_of_an_attempt_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match="no end of an attempt"):
        decode_ended(body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("open", 3), ("open", [1]), ("endpoint", ["a"]), ("endpoint", ["a", {}, None]), ("endpoint", "abc,"),
        ("replay", ["name", []]), ("tool_used", []), ("tool_used", [{"name": 1}]), ("shell", "rm"),
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(kind: str, body: Any) -> None:
    with pytest.raises(ValueError, match=f"no {kind}"):
        decode_question(kind, body)


@pytest.fixture
def pipe() -> Iterator[tuple[int, Channel]]:
    ours, theirs = os.pipe()
    yield theirs, Channel(ours, theirs)
    os.close(ours)
    os.close(theirs)


def frame(head: Any, *blobs: bytes) -> bytes:
    return packed(head, *blobs)


@contextmanager
def a_line_that_is_full() -> Iterator[tuple[SharedLine, threading.Thread, socket.socket]]:
    """A line, who asks a long question of attempt 1 there, and the other side, which reads nothing of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = SharedLine(ours.fileno())
        line.begin(1)
        asks = threading.Thread(target=line.post, args=(1, "replay", ("look", {"at": "x" * (1 << 22)})), daemon=True)
        asks.start()
        assert theirs.recv(8), "it is being sent, and there is no room for it"
        yield line, asks, theirs


def test_who_listens_never_waits_for_who_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that nobody reads yet keeps neither another attempt nor an answer waiting: with both sides waiting for
    the other to read, many agents in one process stood still for ever."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)  # it would hold for this whole process
    with a_line_that_is_full() as (line, asks, theirs):
        heard = threading.Event()
        listens = threading.Thread(
            target=lambda: (line.begin(2), line.hand(Message(1, "ok", None)), heard.set()), daemon=True
        )
        listens.start()
        assert heard.wait(60)
        while asks.is_alive():
            theirs.setblocking(False)
            with suppress(BlockingIOError):
                theirs.recv(1 << 20)
        asks.join()


def spoken(line: SharedLine, text: str, talk: Talk) -> None:
    talk.tail.add(text)
    line.say(talk)


def test_what_is_printed_while_something_is_sent_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is thrown away in the midst of a message may print: its process stood still for ever. It is told
    before its attempt's end."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line, talk = SharedLine(ours.fileno()), Talk(1, "printed")
        line.begin(1)
        send = line._channel.send
        monkeypatch.setattr(
            line._channel, "send", lambda *given: (given[1] == "ended" and spoken(line, "gone\n", talk), send(*given))
        )
        spoken(line, "there\n", talk)
        line.ended(1, encode_failure(failed("stopped", "x").failure, []))
        heard = Channel(theirs.fileno(), theirs.fileno())
        assert [heard.receive().kind for _ in range(2)] == ["printed", "ended"]
        assert not line._talk, "of one that has ended nothing more is said"


def test_what_is_printed_while_nobody_reads_is_held_up_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it was: an agent in a thread could fill the memory."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line, talk = SharedLine(ours.fileno()), Talk(1, "printed")
        line.begin(1)
        with line._lock:  # somebody sends, and is not read
            for k in range(1000):
                spoken(line, f"{k:04}" * 100 + "\n", talk)
            assert len(line._talk) == 1
        line._tell()
        text, cut = Channel(theirs.fileno(), theirs.fileno()).receive().body
        assert (len(text), cut) == (bounds.PRINTED, 401_000 - bounds.PRINTED) and text.endswith("0999\n")


def test_the_end_of_what_is_printed_is_kept_and_the_rest_is_counted() -> None:
    tail = Tail()
    assert not tail.add("a") and tail.add("b\n") and tail.take() == ("ab\n", 0) and tail.take() == ("", 0)
    assert tail.add("x" * 30_000 + "y") and tail.take() == ("x" * (bounds.PRINTED - 1) + "y", 30_001 - bounds.PRINTED)
    told = printed = 0
    while printed < 2 * CHATTY:
        printed += 10
        if tail.add("123456789\n"):
            text, cut = tail.take()
            told += 1
            assert not cut
    assert CHATTY / 20 < told < CHATTY / 10 + 2 * CHATTY / bounds.PRINTED, "from then on in larger parts"


def test_bytes_are_printed_as_text() -> None:
    told = io.StringIO()
    prints = Prints(told)
    prints.buffer.write(b"caf\xc3\xa9\n")
    assert told.getvalue() == "caf\xe9\n" and prints.buffer.writable() and prints.writable()
    prints.reconfigure(encoding="utf-8")
    with pytest.raises(TypeError, match="must be str, not bytes"):
        prints.write(b"on")  # in an attempt it was another's thread that could not put it together
    prints.close()
    print("on", file=prints)
    assert told.getvalue().endswith("on\n"), "it is everybody's"


def test_who_listens_has_others_speak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What ends while it is begun or stopped was told by the thread that listens: with both sides waiting for the other
    to read, many agents in one process stood still for ever."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    monkeypatch.setattr(Ambient, "__init__", lambda *_: None)
    with a_line_that_is_full() as (line, asks, theirs):
        task = WorkflowTask(task=Task(main_query="q"), task_tag="T")
        bodies = [decoded(encode_attempt(task, config, 0.0)) for config in (View({"a": 1}), None)]
        bodies[0]["task"]["metadata"] = "none"
        heard: list[Any] = []

        def listen() -> None:
            player = SharedPlayer(line, Home("nowhere.py->Flow", tmp_path, (), Endpoint("http://x/v1", "k", "m")))
            for number, body in enumerate(bodies, start=2):
                player.hear(Message(number, "attempt", body))
            player._end(1, None, failed("stopped", "x").failure)
            heard.append(player._config.a)

        listens = threading.Thread(target=listen, daemon=True)
        listens.start()
        listens.join(60)
        assert heard == [1], "the settings are known although the attempt that brought them was none"
        theirs.settimeout(60)
        unread = b""
        while asks.is_alive() or unread.count(b'"ended"') < 3:
            unread = unread[-100_000:] + theirs.recv(1 << 20)


def test_a_fork_closes_nothing_of_its_parents() -> None:
    """What an attempt opened was closed, its folder removed, by a child that came back from `execute`."""
    closed: list[int] = []
    resources = Resources()
    resources.callback(closed.append, 1)
    child = os.fork()
    if child == 0:
        try:
            resources.close()
        finally:
            os._exit(len(closed))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    resources.close()
    assert closed == [1]


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff" + b"0" * 8, b"\x00\x00\x00\x02" + (LONGEST + 1).to_bytes(4, "big") + b"{}",
        b"\x00\x00\x00\x02\x00\x00\x00\x00[]", frame({"about": True, "kind": "x"}, b"1"), frame({"about": 1}, b"1"),
        frame({"about": 1, "kind": "x"}), frame({"about": 1, "kind": "x"}, b"NaN"),
        frame({"about": 1, "kind": "x"}, b'{"$set": [[]], "$": 0'), frame({"about": 1, "kind": "x"}, b'{"$eval": "1"}'),
        frame({"about": 1, "kind": "x"}, b'{"$set": 3}'), frame({"about": 1, "kind": "x"}, b"[" * 40_000),
        frame({"about": 1, "kind": "x"}, b"9" * 5000),
    ],
)  # fmt: skip
def test_a_stream_of_something_else_is_no_message(sent: bytes, pipe: tuple[int, Channel]) -> None:
    number, channel = pipe
    os.write(number, sent)
    with pytest.raises(ValueError):
        channel.receive()


def test_what_arrives_is_never_unpickled(tmp_path: Path, pipe: tuple[int, Channel]) -> None:
    number, channel = pipe
    bomb = pickle.dumps(Bomb(tmp_path / "went off"))
    os.write(number, frame({"about": 1, "kind": "ended"}, bomb))
    with pytest.raises(ValueError, match="no |JSON|Expecting|codec"):
        channel.receive()
    channel.send(1, "ended", json.dumps(bomb.hex()).encode())
    assert channel.receive().body == bomb.hex() and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a timer that sends signals is Linux's")
def test_who_stands_still_is_woken_though_the_signal_of_its_parents_end_is_lost() -> None:
    """Standing still takes a look at the parent and a stop, and the parent may end between the two."""
    alone = """
import os, signal
from ajet.rollout.isolation import worker_life
worker_life._wake_when_alone()
worker_life._wake_every_second()
for _ in range(2):
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    done = subprocess.run([sys.executable, "-c", alone], timeout=300)
    assert done.returncode == 0
