"""What crosses between the rollout and a worker: data comes out as it went in, and nothing else is believed."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.config.view import View
from ajet.environment.sandbox.inside.frames import packed
from ajet.environment.services.gym_env import GymEnv
from ajet.environment.services.wire import EnvService
from ajet.rollout.failure import failed
from ajet.rollout.isolation.channel import LONGEST, Channel, Message
from ajet.rollout.isolation.loops_worker import Prints, SharedLine
from ajet.rollout.isolation.messages import (
    decode_attempt,
    decode_ended,
    decode_question,
    encode_attempt,
    encode_failure,
    encode_output,
)
from ajet.rollout.isolation.values import decoded, encoded
from ajet.schema.episode import Failure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask

DATA = {
    "texts": ["ä", "\ud800", ""], "numbers": [1, -2.5, 10**40, True, None], "tuple": (1, (2,)), "set": {1, "a", (3,)},
    "frozen": frozenset({1}), "bytes": b"\x00\xff", "date": date(2026, 1, 2), "time": datetime(2026, 1, 2, tzinfo=UTC),
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


def test_an_attempt_is_the_same_elsewhere() -> None:
    env = GymEnv(EnvService("http://there", "kind", "secret"), "7")
    env.instance_id, env.until = "i", 5.0
    task = Task(main_query="q", task_id="7", metadata={"answer": (1, 2)}, own_field=b"x")
    given = WorkflowTask(task=task, episode_uuid="u", task_tag="T", task_thread_index=2, gym_env=env)
    found, config, began = decode_attempt(decoded(encode_attempt(given, View({"ajet": {"a": [1]}, 5: "x"}), 2.5)))
    assert (found.task, found.task_tag, found.task_thread_index, began) == (task, "T", 2, 2.5)
    assert (config.ajet.a, config[5]) == ([1], "x")  # type: ignore[index]
    assert (found.gym_env.service, found.gym_env.instance_id, found.gym_env.until) == (env.service, "i", 5.0)
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


def test_who_listens_never_waits_for_who_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that nobody reads yet keeps neither another attempt nor an answer waiting: with both sides waiting for
    the other to read, many agents in one process stood still for ever."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)  # it would hold for this whole process
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = SharedLine(ours.fileno())
        line.begin(1)
        asks = threading.Thread(target=line.post, args=(1, "replay", ("look", {"at": "x" * (1 << 22)})), daemon=True)
        asks.start()
        assert theirs.recv(8), "it is being sent, and there is no room for it"
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


def test_what_is_printed_while_something_is_sent_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is thrown away in the midst of a message may print: its process stood still for ever. It is told
    before its attempt's end."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = SharedLine(ours.fileno())
        line.begin(1)
        send = line._channel.send
        monkeypatch.setattr(
            line._channel, "send", lambda *given: (line.say(1, "gone\n") if given[1] == "ended" else None, send(*given))
        )
        line.say(1, "there\n")
        line.ended(1, encode_failure(failed("stopped", "x").failure, []))
        heard = Channel(theirs.fileno(), theirs.fileno())
        assert [heard.receive().kind for _ in range(2)] == ["printed", "ended"]
        assert not line._printed, "of one that has ended nothing more is said"


def test_bytes_are_printed_as_text() -> None:
    told = io.StringIO()
    prints = Prints(told)
    prints.buffer.write(b"caf\xc3\xa9\n")
    assert told.getvalue() == "caf\xe9\n" and prints.buffer.writable()


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
