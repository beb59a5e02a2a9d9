"""The threads that serve: what keeps one from serving is told to who starts it, and what is asked of it at its end is
done or said."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from concurrent.futures import Future

import httpx
import pytest

from ajet.engine.scripted import ScriptedChat
from ajet.gateway import Gateway, server
from ajet.gateway.listener import listen
from ajet.gateway.server_thread import start_server
from ajet.record.secrets import Redactor
from ajet.schema.errors import UserError
from ajet_observe.relay import ObservingRelay
from ajet_observe.server import RelayServer
from ajet_observe.sessions import ObservedSessions

WAIT_S = 20.0


def within(work):
    """What it answers or raises; it fails where that takes for ever."""
    told: Future = Future()

    def run():
        try:
            told.set_result(work())
        except BaseException as error:  # noqa: BLE001 — the other thread raises it
            told.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return told.result(WAIT_S)


def full(*_):
    raise OSError(errno.EMFILE, "Too many open files")


def gateway() -> Gateway:
    return Gateway(ScriptedChat(["hi"]), None, max_model_len=100, max_response_tokens=10)


def test_a_gateway_that_has_no_descriptors_left_for_its_loop_says_so(monkeypatch):
    monkeypatch.setattr(server, "new_loop", full)
    made = gateway()
    with pytest.raises(OSError, match="Too many open files"):
        within(made.start)
    made.close()
    monkeypatch.undo()
    within(made.start).close()


def test_a_proxy_that_has_no_descriptors_left_for_its_loop_says_so(monkeypatch, tmp_path, recwarn):
    sessions = ObservedSessions(tmp_path, Redactor({}), lambda *_: None, tmp_path / "late.jsonl")
    listening = listen("127.0.0.1", 0, name="proxy", where="")
    monkeypatch.setattr(asyncio, "new_event_loop", full)
    monkeypatch.setattr(asyncio.events, "new_event_loop", full)
    with pytest.raises(OSError, match="Too many open files"):
        within(lambda: RelayServer(ObservingRelay("http://127.0.0.1:9/v1", sessions), sessions, listening))
    assert listening.fileno() == -1 and not [each for each in recwarn if "never awaited" in str(each.message)]


@pytest.mark.parametrize(("number", "do"), [(errno.EMFILE, "ulimit"), (errno.EAFNOSUPPORT, "127.0.0.1")])
def test_who_gets_no_socket_to_listen_on_is_told_so(monkeypatch, number, do):
    def none(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", none)
    with pytest.raises(UserError, match="cannot listen on ::1:0: .*(Too many|not supported)") as error:
        listen("::1", 0, name="proxy", where="--host")
    assert do in error.value.do


def test_a_thread_that_ends_before_it_serves_is_not_waited_for():
    with pytest.raises(RuntimeError, match="idle ended before it had begun"):
        within(lambda: start_server(lambda started: None, name="idle"))


def test_what_a_function_on_the_loop_raises_is_raised():
    made = gateway().start()
    try:
        with pytest.raises(ZeroDivisionError):
            within(lambda: made.on_loop(lambda: print(1 // 0)))
    finally:
        made.close()


class Gate:
    """A gateway's own, that counts who has gone through it."""

    def __init__(self):
        self.lock, self.passed = threading.Lock(), threading.Semaphore(0)

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()
        self.passed.release()


def asked_at_its_end(monkeypatch, *, last: bool):
    """(the thread on which a function ran, what became of a coroutine) of a gateway that is asked for both once its
    last request has been answered; `last`: once it runs nothing more, and then a request of this process is refused."""
    gate, ending, ran = Gate(), threading.Event(), []
    serve, cancel_all = server.Listener.serve, server.cancel_all

    def wait_for_who_asks():
        ending.set()
        assert all(gate.passed.acquire(timeout=WAIT_S) for _ in range(2))

    async def serves(self, sockets=None):
        await serve(self, sockets)
        if not last:
            wait_for_who_asks()

    async def cancels():
        await cancel_all()
        if last:
            assert gate.passed.acquire(timeout=WAIT_S)  # the loop's own
            wait_for_who_asks()

    async def answer():
        return 4

    async def request():
        async with httpx.AsyncClient(transport=made.transport()) as client:
            await client.get("http://gateway/health", timeout=WAIT_S)

    def ask():
        try:
            answered = made.call(answer())
        except RuntimeError as error:
            answered = str(error)
        if last:
            with pytest.raises(httpx.ConnectError, match="the gateway is closed"):
                asyncio.run(request())
        made.on_loop(lambda: ran.append(threading.current_thread().name))
        return ran, answered if isinstance(answered, str) else answered.result(WAIT_S)

    monkeypatch.setattr(server.Listener, "serve", serves)
    monkeypatch.setattr(server, "cancel_all", cancels)
    made = gateway()
    made.gate = gate
    made.start()
    closing = threading.Thread(target=made.close)
    closing.start()
    assert ending.wait(WAIT_S)
    told = within(ask)
    closing.join(WAIT_S)
    assert not closing.is_alive()
    return told


def test_what_a_loop_is_given_before_its_last_run_is_done_there(monkeypatch):
    assert asked_at_its_end(monkeypatch, last=False) == (["ajet-gateway"], 4)


def test_what_comes_after_its_last_run_is_done_when_it_has_ended_or_refused(monkeypatch):
    [thread], answered = asked_at_its_end(monkeypatch, last=True)
    assert thread != "ajet-gateway" and answered == "the gateway is closed"
