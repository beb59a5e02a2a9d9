"""What goes wrong with MCP servers: each a typed failure, in time, and nothing left of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ajet.environment.loop import on_tools_loop
from ajet_mcp import CallFailedError, Limits, Server, processes
from tests.mcp_servers.plain_http import TOKEN
from tests.support.mcp_fixtures import PLAIN, SERVERS, SHORT, attempt, killable, lives, opened, plain_server  # noqa: F401
from tests.support.waiting import until

PATIENT = replace(SHORT, call=240)


@contextmanager
def quick(tools):
    """Calls of its only session have half a second, which is meant to pass, and those around them their minute."""
    (session,) = tools.toolset._sessions
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(session, "_seconds"):
            patch.setattr(session, "_seconds", 0.5)
        else:
            patch.setattr(session, "_server", replace(session._server, timeout=0.5))
        yield


def slow(*values):
    """One more of what another parameter shows."""
    return pytest.param(*values, marks=pytest.mark.extra_slow)


@pytest.mark.parametrize("era", ["modern", slow("legacy")])
def test_a_server_that_is_killed_in_a_call_is_a_transport_failure_and_no_timeout(era, tmp_path):
    async def plays(url, pid):
        async with attempt(url, limits=PATIENT) as tools:
            waiting = asyncio.create_task(tools.use("hang", {"begun": str(tmp_path / "begun")}))
            while not (tmp_path / "begun").exists() and not waiting.done():
                await asyncio.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(CallFailedError) as failed:
                await waiting
            assert (failed.value.kind, failed.value.delivered) == ("transport", True)
            with pytest.raises(CallFailedError) as again:
                await tools.use("echo", {"text": "x"})
            assert again.value.kind in ("transport", "environment")
            return [use.error for use in tools.uses]

    with killable(era) as (url, pid):
        assert asyncio.run(plays(url, pid))[0] == "transport"


def test_a_server_on_pipes_that_dies_says_so_with_its_last_words(monkeypatch):
    monkeypatch.setattr(processes, "ENDS_S", 60.0)

    async def plays():
        async with attempt(PLAIN, limits=PATIENT) as tools:
            with pytest.raises(CallFailedError) as failed:
                await tools.use("die", {})
            return str(failed.value), failed.value.kind

    said, kind = asyncio.run(plays())
    assert kind == "transport" and "exit code 3" in said and "I am dying" in said


@pytest.mark.parametrize("plain_server", ["legacy"], indirect=True)
def test_a_tool_that_hangs_is_a_result_after_its_time_and_the_session_goes_on(plain_server):  # noqa: F811
    async def plays():
        async with attempt(plain_server.url) as tools:
            with quick(tools):
                assert (await tools.use("hang", {"seconds": 30})).error == "timeout"
            return await tools.use("echo", {"text": "on we go"})

    assert asyncio.run(plays()).text == "on we go"


def test_a_tool_that_hangs_on_pipes_does_not_keep_its_process():
    async def plays():
        async with attempt(PLAIN) as tools:
            pid = int((await tools.use("pid", {})).text)
            with quick(tools):
                assert (await tools.use("hang", {})).error == "timeout"
        return pid

    pid = asyncio.run(plays())
    assert until(lambda: not lives(pid))


@pytest.mark.parametrize(
    ("where", "megabytes"), [("modern", 32), ("pipes", 32), slow("modern", 1024), slow("pipes", 1024)]
)
def test_a_huge_result_is_never_held_whole(where, megabytes):
    """Up to 1 GB where 1 MB is allowed: neither held nor parsed. On pipes the rest of it is passed over."""
    size = megabytes << 20

    async def plays(use):
        async with attempt(use, limits=PATIENT) as tools:
            before = _held_mb()
            Path("/proc/self/clear_refs").write_text("5")  # the most that was held is counted from here
            try:
                result = (await tools.use("big", {"size": size})).error
            except CallFailedError as lost:
                result = lost.kind
            assert _most_held_mb() - before < 16
            return result, (await tools.use("echo", {"text": "x"})).text

    if where == "pipes":
        assert asyncio.run(plays(PLAIN)) == ("too_large", "x")
        return
    with killable(where) as (url, _):
        assert asyncio.run(plays(url)) == ("too_large", "x")


def test_lines_that_are_no_protocol_are_passed_over():
    async def plays():
        async with attempt(PLAIN) as tools:
            return await tools.use("garbage", {"text": "found"})

    assert asyncio.run(plays()).text == "found"


def test_a_server_that_only_writes_garbage_is_given_up():
    async def plays():
        async with attempt(PLAIN) as tools:
            await tools.use("garbage", {"lines": 2000})

    with pytest.raises(CallFailedError, match="JSON-RPC") as failed:
        asyncio.run(plays())
    assert failed.value.kind == "transport"


@pytest.mark.parametrize("plain_server", [{"era": "legacy", "token": TOKEN}], indirect=True)
def test_a_wrong_token_is_said_and_not_tried_again(plain_server):  # noqa: F811
    async def plays(token):
        server = Server("guarded", "http", url=plain_server.url, headers={"Authorization": f"Bearer {token}"})
        async with attempt(server) as tools:
            return (await tools.use("echo", {"text": "in"})).text

    assert asyncio.run(plays(TOKEN)) == "in"
    with pytest.raises(CallFailedError, match=r"refuses the token \(HTTP status 401\)") as failed:
        asyncio.run(plays("wrong"))
    assert (failed.value.boundary, failed.value.retryable) == ("environment", False)
    assert "wrong" not in str(failed.value)


@pytest.mark.parametrize("plain_server", ["legacy"], indirect=True)
def test_a_token_that_expires_in_an_episode_loses_the_environment(plain_server):  # noqa: F811
    async def plays():
        async with attempt(plain_server.url) as tools:
            plain_server.token = "another"
            await tools.use("add_safely", {})

    with pytest.raises(CallFailedError, match="HTTP.* 401"):
        asyncio.run(plays())
    assert not plain_server.added


@pytest.mark.parametrize("plain_server", ["legacy"], indirect=True)
def test_a_session_that_the_server_forgot_is_an_environment_lost_and_not_begun_anew(plain_server):  # noqa: F811
    async def plays():
        async with attempt(plain_server.url) as tools:
            plain_server.sessions.clear()
            await tools.use("add_safely", {})

    with pytest.raises(CallFailedError) as lost:
        asyncio.run(plays())
    assert (lost.value.kind, lost.value.lost) == ("environment", True)
    assert not plain_server.added and not plain_server.sessions


def test_closing_from_another_task_leaves_the_loop_as_it_was():
    async def plays():
        found = await opened(PLAIN)
        await asyncio.create_task(found.toolset.close())
        await found.toolset.close()
        async with attempt(PLAIN) as tools:  # the SDK alone: CancelledError here, or a hang
            return (await tools.use("echo", {"text": "well"})).text

    assert asyncio.run(asyncio.wait_for(plays(), 60)) == "well"


def test_a_cancellation_that_nobody_asked_for_is_a_transport_failure():
    async def cancels_itself():
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(5)

    with pytest.raises(CallFailedError) as failed:
        asyncio.run(on_tools_loop(cancels_itself()))
    assert failed.value.kind == "transport"


def test_what_a_server_started_ends_with_it_also_in_a_session_of_its_own():
    async def plays():
        async with attempt(PLAIN) as tools:
            children = json.loads((await tools.use("children", {})).text)
            assert len(children) == 2 and all(map(lives, children))
        return children

    children = asyncio.run(plays())
    end = time.monotonic() + 60
    while any(map(lives, children)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(lives, children))


def test_a_server_that_cannot_be_started_or_reached_or_never_answers(tmp_path):
    waits = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", str(tmp_path))
    silent = Server("silent", "stdio", command=waits)
    short = Limits(start=0.4, call=0.4, close=0.4)

    async def plays(server):
        async with attempt(server, limits=short if server is silent else SHORT):
            pass

    for server, said in (
        (Server("none", "stdio", command=("/no/such/program",)), "cannot be started"),
        (Server("away", "http", url="http://127.0.0.1:9/mcp"), "127.0.0.1:9|connection attempts failed"),
        (silent, "did not answer"),
    ):
        with pytest.raises(CallFailedError, match=said) as failed:
            asyncio.run(plays(server))
        assert failed.value.boundary == "environment"
    ours = str(tmp_path)  # it is killed within its 0.4 s, and gone a while later
    assert until(lambda: not any(ours in (each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])))


def test_an_attempt_that_is_cancelled_while_it_opens_leaves_nothing(tmp_path):
    told = {name: tmp_path / name for name in ("answers", "silent")}
    tells = "import os, runpy, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); "
    goes_on = {"answers": "runpy.run_path(sys.argv[2])", "silent": "time.sleep(60)"}
    plain = str(SERVERS / "plain_stdio.py")
    servers = [
        Server(name, "stdio", command=(sys.executable, "-I", "-S", "-c", tells + goes_on[name], str(told[name]), plain))
        for name in told
    ]

    async def plays():
        opening = asyncio.create_task(opened(*servers))
        while not opening.done() and not all(file.exists() and file.read_text() for file in told.values()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(plays())
    end = time.monotonic() + 60
    while any(lives(int(file.read_text())) for file in told.values()) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(lives(int(file.read_text())) for file in told.values())


def test_an_attempt_that_is_cancelled_while_it_closes_leaves_nothing(tmp_path):
    told = tmp_path / "pid"
    stays = (
        "import os, runpy, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); "
        "runpy.run_path(sys.argv[2], run_name='__main__'); time.sleep(60)"
    )
    command = (sys.executable, "-I", "-S", "-c", stays, str(told), str(SERVERS / "plain_stdio.py"))

    async def plays() -> Path:
        toolset = (await opened(Server("stays", "stdio", command=command), limits=replace(SHORT, close=3))).toolset
        folder, _ = toolset._workdir.made()
        closing = asyncio.create_task(toolset.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        return folder

    folder = asyncio.run(plays())
    end = time.monotonic() + 60
    while (lives(int(told.read_text())) or folder.parent.exists()) and time.monotonic() < end:
        time.sleep(0.02)
    assert not lives(int(told.read_text())) and not folder.parent.exists()


def _most_held_mb() -> float:
    """The most that it held."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) / 1024 for row in rows if row.startswith("VmHWM:"))


def _held_mb() -> float:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
