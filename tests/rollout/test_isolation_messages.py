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
from datetime import UTC, date, datetime
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
from ajet.rollout.failure import OUTPUT_CHARS, EpisodeError, classify_exception, make_error
from ajet.rollout.isolation.channel import MAX_MESSAGE_BYTES, Message, MessageChannel, decode_value, encode_value
from ajet.rollout.isolation.messages import (
    WorkerSetup,
    decode_attempt,
    decode_end,
    decode_printed,
    decode_request,
    encode_attempt,
    encode_failure,
    encode_output,
    encode_request,
)
from ajet.rollout.isolation.shared_player import AttemptOutput, SharedPlayer
from ajet.rollout.isolation.worker_channel import CHATTY_CHARS, OutputStream, OutputTail, WorkerChannel
from ajet.schema.endpoint import Endpoint
from ajet.schema.episode import Failure
from ajet.schema.errors import ToolFailure
from ajet.schema.frames import pack_frame
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.workflow.ambient import RunEnvironment
from ajet.workflow.resources import Resources

DATA = {
    "texts": ["ä", "\ud800", ""], "numbers": [1, -2.5, 10**40, True, None], "tuple": (1, (2,)), "set": {1, "a", (3,)},
    "frozen": frozenset({1}), "bytes": b"\x00\xff", "date": date(2026, 1, 2),
    "time": datetime(2026, 1, 2, tzinfo=UTC),
    "path": Path("a/b"), "keys": {1: "one", (2, 3): "two", None: "none"}, "looks tagged": {"$set": [1]}, "$": {"$x": 0},
}  # fmt: skip


@dataclass(frozen=True)
class Own:
    """A person's own object."""

    x: int


def test_data_comes_out_as_it_went_in() -> None:
    again = decode_value(encode_value(DATA))
    assert again == DATA
    assert [type(value) for value in again.values()] == [
        type(Path()) if isinstance(value, Path) else type(value) for value in DATA.values()
    ]
    numbers = decode_value(encode_value([math.nan, math.inf, -math.inf]))
    assert math.isnan(numbers[0]) and numbers[1:] == [math.inf, -math.inf]


def test_the_rest_becomes_what_the_record_makes_of_it() -> None:
    found = decode_value(
        encode_value({"a": np.arange(3), "f": np.float32(1.5), "task": Task(main_query="q"), "own": Own(3)})
    )
    assert (found["a"], found["f"], found["task"]["main_query"], found["own"]) == ([0, 1, 2], 1.5, "q", "Own(x=3)")
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    assert "nested too deeply" in str(decode_value(encode_value(deep)))
    with pytest.raises(TypeError, match="the class Own, which cannot be encoded"):
        encode_value({"own": [Own(3)]}, exact=True)


def test_an_attempt_is_the_same_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    env = GymEnv(EnvService("http://there", "kind", "secret"), "7")
    env.instance_id, env.until = "i", 5.0
    task = Task(main_query="q", task_id="7", metadata={"answer": (1, 2)}, own_field=b"x")
    given = WorkflowTask(task=task, episode_uuid="u", task_tag="T", task_thread_index=2, gym_env=env)
    monkeypatch.setattr(gym_env, "time", SimpleNamespace(time=lambda: 1000.0, monotonic=lambda: 2.0))
    told = encode_attempt(given, View({"ajet": {"a": [1]}, 5: "x"}), 2.5)
    monkeypatch.setattr(gym_env, "time", SimpleNamespace(time=lambda: 1001.0, monotonic=lambda: 70.0))
    found, config, began = decode_attempt(decode_value(told))
    assert (found.task, found.task_tag, found.task_thread_index, began) == (task, "T", 2, 2.5)
    assert (config.ajet.a, config[5]) == ([1], "x")  # type: ignore[index]
    assert (found.gym_env.service, found.gym_env.instance_id, found.gym_env.until) == (env.service, "i", 72.0)
    assert pickle.loads(pickle.dumps(found.gym_env)).until == 72.0
    with pytest.raises(TypeError, match="cannot be encoded as JSON"):
        encode_attempt(WorkflowTask(task=Task(metadata={"photo": object()})), View({}), 0.0)


def test_an_output_is_one_elsewhere_or_is_refused_where_it_was_made() -> None:
    output = WorkflowOutput(reward=[1, 2], is_success=True, metadata={"seen": {1}}, log_metrics={"n": 1}, more=(1,))
    output.metadata[3] = Own(1)  # type: ignore[index]
    ended = decode_end(decode_value(encode_output(output, ["threads"])))
    assert isinstance(ended.outcome, WorkflowOutput) and ended.changes == ["threads"]
    assert ended.outcome.metadata == {"seen": {1}, "3": "Own(x=1)"} and ended.outcome.model_extra == {"more": (1,)}
    assert (ended.outcome.reward, ended.outcome.is_success) == ([1.0, 2.0], True)
    output.reward = "good"  # type: ignore[assignment]
    with pytest.raises((TypeError, ValueError), match="number"):
        encode_output(output, [])


def test_a_failure_is_bounded_and_typed() -> None:
    failure = Failure("tool", "Odd", "m" * 100_000, retryable=True, policy=True)
    ended = decode_end(decode_value(encode_failure(failure, [])))
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
    ended = decode_end(decode_value(encode_output(output, [])))
    assert isinstance(ended.outcome, WorkflowOutput) and ended.outcome.reward == 0.5


class OwnFailure(ToolFailure):
    """One with a side of a person's own."""

    boundary = "mine"  # type: ignore[assignment]


@pytest.mark.parametrize(("problem", "boundary"), [(OwnFailure("odd"), "agent"), (ToolFailure("odd"), "tool")])
def test_a_failure_of_a_class_of_ones_own_can_be_read(problem: ToolFailure, boundary: str) -> None:
    problem.retryable = 1  # type: ignore[assignment]
    ended = decode_end(decode_value(encode_failure(classify_exception(problem), [])))
    assert isinstance(ended.outcome, Failure)
    assert (ended.outcome.boundary, ended.outcome.retryable, ended.outcome.policy) == (boundary, True, False)


@pytest.mark.parametrize("body", [None, "x", ["x"], ["x", -1], ["x", 1.5], [3, 0], ["x", True]])
def test_what_is_nothing_printed_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match="the output is invalid"):
        decode_printed(body)


def test_what_is_printed_is_bounded() -> None:
    assert decode_printed(["x" * 10_000, 5]) == ("x" * OUTPUT_CHARS, 10_005 - OUTPUT_CHARS)


@pytest.mark.parametrize(("kind", "asked"), [("open", [1]), ("replay", (5, {})), ("endpoint", ("a", 3, None))])
def test_names_that_are_no_texts_are_refused_where_they_are_asked_for(kind: str, asked: Any) -> None:
    with pytest.raises(TypeError, match="must be strings"):
        encode_request(kind, asked)


@pytest.mark.parametrize("body", ENDS)
def test_what_is_no_end_of_an_attempt_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match="the attempt's end is invalid"):
        decode_end(body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("open", 3), ("open", [1]), ("endpoint", ["a"]), ("endpoint", ["a", {}, None]), ("endpoint", "abc,"),
        ("replay", ["name", []]), ("tool_used", []), ("tool_used", [{"name": 1}]), ("shell", "rm"),
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(kind: str, body: Any) -> None:
    with pytest.raises(ValueError, match=f"kind {kind}|of this kind"):
        decode_request(kind, body)


@pytest.fixture
def pipe() -> Iterator[tuple[int, MessageChannel]]:
    ours, theirs = os.pipe()
    yield theirs, MessageChannel(ours, theirs)
    os.close(ours)
    os.close(theirs)


def frame(head: Any, *blobs: bytes) -> bytes:
    return pack_frame(head, *blobs)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WorkerChannel, socket.socket]]:
    """A worker's channel, which knows attempt 1, and the rollout's socket."""
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)  # it would hold for this whole process
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = WorkerChannel(ours.fileno())
        channel.begin(1)
        yield channel, theirs


@contextmanager
def full_channel(channel: WorkerChannel, theirs: socket.socket) -> Iterator[threading.Thread]:
    """Within the block a long request is being sent, and the rollout reads nothing of it."""
    asks = threading.Thread(target=channel.post, args=(1, "replay", ("look", {"at": "x" * (1 << 22)})), daemon=True)
    asks.start()
    assert theirs.recv(8), "it is being sent, and there is no room for it"
    yield asks
    while asks.is_alive():
        theirs.setblocking(False)
        with suppress(BlockingIOError):
            theirs.recv(1 << 20)
    asks.join()


def test_worker_reads_while_its_channel_is_full(sockets: tuple[WorkerChannel, socket.socket]) -> None:
    """With both sides waiting for the other to read, many agents in one process stood still for ever."""
    channel, theirs = sockets
    channel.begin(2)
    reply = channel.post(2, "context_full", None)
    assert MessageChannel(theirs.fileno(), theirs.fileno()).receive().kind == "context_full"
    channel.start_reading()
    with full_channel(channel, theirs):
        rollout = MessageChannel(theirs.fileno(), theirs.fileno())
        rollout.send(2, "ok", encode_value(False))
        rollout.send(3, "attempt", encode_value("much" * (1 << 20)))
        assert reply.result(60).body is False
        assert channel.next_order().about == 3


def test_replies_go_to_the_oldest_request_of_their_attempt(sockets: tuple[WorkerChannel, socket.socket]) -> None:
    channel, theirs = sockets
    channel.begin(2)
    channel.start_reading()
    replies = [channel.post(*asked) for asked in ((1, "open", None), (2, "open", None), (1, "context_full", None))]
    rollout = MessageChannel(theirs.fileno(), theirs.fileno())
    for about, body in ((2, "second"), (1, "first"), (7, "nobody's"), (1, "third")):
        rollout.send(about, "ok", encode_value(body))
    assert [reply.result(60).body for reply in replies] == ["first", "second", "third"]


def test_requests_after_the_end_of_their_attempt_fail(sockets: tuple[WorkerChannel, socket.socket]) -> None:
    channel, theirs = sockets
    channel.start_reading()
    waits = channel.post(1, "open", None)
    channel.end(1, encode_failure(make_error("stopped", "x").failure, []))
    channel.end(1, b"null")
    for raises in (lambda: waits.result(60), lambda: channel.post(1, "open", None)):
        with pytest.raises(EpisodeError, match="its episode has ended"):
            raises()
    rollout = MessageChannel(theirs.fileno(), theirs.fileno())
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        channel.next_order()
    assert [rollout.receive().kind for _ in range(2)] == ["open", "ended"]


def print_in(channel: WorkerChannel, text: str, stream: OutputStream) -> None:
    stream.tail.add(text)
    channel.send_output(stream)


def test_what_is_printed_while_something_is_sent_waits_for_nobody(
    sockets: tuple[WorkerChannel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that is thrown away in the midst of a message may print: its process stood still for ever. It is told
    before its attempt's end."""
    (channel, theirs), stream = sockets, OutputStream(1, "printed")
    send = channel.channel.send
    monkeypatch.setattr(
        channel.channel, "send",
        lambda *given: (given[1] == "ended" and print_in(channel, "gone\n", stream), send(*given)),
    )  # fmt: skip
    print_in(channel, "there\n", stream)
    channel.end(1, encode_failure(make_error("stopped", "x").failure, []))
    rollout = MessageChannel(theirs.fileno(), theirs.fileno())
    assert [rollout.receive().kind for _ in range(2)] == ["printed", "ended"]
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):  # of one that has ended nothing more is said
        rollout.receive()


def test_what_is_printed_while_nobody_reads_is_held_up_to_the_bound(
    sockets: tuple[WorkerChannel, socket.socket],
) -> None:
    """All of it was: an agent in a thread could fill the memory."""
    (channel, theirs), stream = sockets, OutputStream(1, "printed")
    with channel.sending:  # another thread sends, and the rollout reads nothing
        for k in range(1000):
            print_in(channel, f"{k:04}" * 100 + "\n", stream)
    channel.send_output(stream)
    text, cut = MessageChannel(theirs.fileno(), theirs.fileno()).receive().body
    assert (len(text), cut) == (OUTPUT_CHARS, 401_000 - OUTPUT_CHARS) and text.endswith("0999\n")


def test_the_end_of_what_is_printed_is_kept_and_the_rest_is_counted() -> None:
    tail = OutputTail()
    assert not tail.add("a") and tail.add("b\n") and tail.take() == ("ab\n", 0) and tail.take() == ("", 0)
    assert tail.add("x" * 30_000 + "y") and tail.take() == ("x" * (OUTPUT_CHARS - 1) + "y", 30_001 - OUTPUT_CHARS)
    told = printed = 0
    while printed < 2 * CHATTY_CHARS:
        printed += 10
        if tail.add("123456789\n"):
            text, cut = tail.take()
            told += 1
            assert not cut
    assert CHATTY_CHARS / 20 < told < CHATTY_CHARS / 10 + 2 * CHATTY_CHARS / OUTPUT_CHARS, (
        "from then on in larger parts"
    )


def test_bytes_are_printed_as_text() -> None:
    told = io.StringIO()
    prints = AttemptOutput(told)
    prints.buffer.write(b"caf\xc3\xa9\n")
    assert told.getvalue() == "caf\xe9\n" and prints.buffer.writable() and prints.writable()
    prints.reconfigure(encoding="utf-8")
    with pytest.raises(TypeError, match="must be str, not bytes"):
        prints.write(b"on")  # in an attempt it was another's thread that could not put it together
    prints.close()
    print("on", file=prints)
    assert told.getvalue().endswith("on\n"), "it is everybody's"


def test_settings_are_known_though_their_attempt_cannot_begin(
    sockets: tuple[WorkerChannel, socket.socket], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(RunEnvironment, "__init__", lambda *_: None)
    channel, theirs = sockets
    task = WorkflowTask(task=Task(main_query="q"), task_tag="T")
    bodies = [decode_value(encode_attempt(task, config, 0.0)) for config in (View({"a": 1}), None)]
    bodies[0]["task"]["metadata"] = "none"
    player = SharedPlayer(
        channel, WorkerSetup("nowhere.py->Flow", tmp_path, (), Endpoint("http://x/v1", "k", "m"), True)
    )
    rollout = MessageChannel(theirs.fileno(), theirs.fileno())
    for number, body in enumerate(bodies, start=2):
        player.take(Message(number, "attempt", body))
        ended = rollout.receive()
        assert (ended.about, ended.kind) == (number, "ended") and "failure" in ended.body
    assert player.config.a == 1


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
        b"\xff\xff\xff\xff" + b"0" * 8, b"\x00\x00\x00\x02" + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big") + b"{}",
        b"\x00\x00\x00\x02\x00\x00\x00\x00[]", frame({"about": True, "kind": "x"}, b"1"), frame({"about": 1}, b"1"),
        frame({"about": 1, "kind": "x"}), frame({"about": 1, "kind": "x"}, b"NaN"),
        frame({"about": 1, "kind": "x"}, b'{"$set": [[]], "$": 0'), frame({"about": 1, "kind": "x"}, b'{"$eval": "1"}'),
        frame({"about": 1, "kind": "x"}, b'{"$set": 3}'), frame({"about": 1, "kind": "x"}, b"[" * 40_000),
        frame({"about": 1, "kind": "x"}, b"9" * 5000),
    ],
)  # fmt: skip
def test_a_stream_of_something_else_is_no_message(sent: bytes, pipe: tuple[int, MessageChannel]) -> None:
    number, channel = pipe
    os.write(number, sent)
    with pytest.raises(ValueError):
        channel.receive()


def test_what_arrives_is_never_unpickled(tmp_path: Path, pipe: tuple[int, MessageChannel]) -> None:
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
from ajet.rollout.isolation import worker
worker.wake_when_alone()
worker.wake_every_second()
for _ in range(2):
    os.kill(os.getpid(), signal.SIGSTOP)
"""
    done = subprocess.run([sys.executable, "-c", alone], timeout=300)
    assert done.returncode == 0
