"""Hostile replies, over HTTP and pipes: each is a result or a CallFailedError, in time, and never another exception."""

from __future__ import annotations

import asyncio
import email.utils
import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ajet.environment.loop import on_tools_loop
from ajet.schema.errors import ConfigError
from ajet.schema.tool_use import ToolUse
from ajet_mcp.contract import CallFailedError, Limits, Reply
from ajet_mcp.results import shown
from ajet_mcp.servers import Server, servers_of
from ajet_mcp.thin import ThinClient
from ajet_mcp.toolset import Toolset
from tests.mcp_servers.hostile_table import BODIES, RAW
from tests.mcp_servers.scripted import RESULTS, Asked, Part, Parts, ScriptedServer, chunked, http, rpc, stdio_command

pytestmark = pytest.mark.slow

LIMITS = Limits(start=1.0, call=0.5, close=0.2, reply_bytes=1 << 20)
PATIENT = Limits(start=4.0, call=2.0, close=1.0)
ROOT = Path(__file__).parents[3]
ENDS_S = 8.0
"""Of a machine that has other work: more than all of LIMITS."""


async def play(*servers: Server, limits: Limits = LIMITS, most: int = 3) -> list[str]:
    """The replies of the first tools, or their failures, in one attempt on these servers. Raises CallFailedError."""
    uses: list[ToolUse] = []

    async def count(text: str) -> int:
        return len(text)

    tools = await Toolset.open(servers, keep=uses.append, count=count, limits=limits)
    async with tools:
        json.dumps(tools.definitions, ensure_ascii=False, allow_nan=False).encode()  # a request can carry them
        names = [each["function"]["name"] for each in tools.definitions]
        assert len(set(names)) == len(names) and all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", each) for each in names)
        for name in names[:most]:
            try:
                (await tools.use(name, {"a": "x"})).text.encode()
            except CallFailedError as problem:
                str(problem).encode()
    return [use.result for use in uses]


def over_http(script: Mapping[str, tuple[str, Parts]]) -> dict[str, list[str] | None]:
    """What became of each script, all at once, each at an address of its own."""
    found: dict[str, list[str] | None] = {}
    cases = list(script.values())

    def answer(asked: Asked) -> Parts | None:
        method, parts = cases[int(asked.path.split("/")[1])]
        return parts if asked.method == method else None

    async def play_one(name: str, url: str) -> None:
        try:
            found[name] = await asyncio.wait_for(play(Server("s", "http", url=url)), ENDS_S)
        except CallFailedError as problem:
            str(problem).encode()
            found[name] = [f"FAILED {problem}"[:300]]
        except Exception as problem:  # noqa: BLE001 - the test lists them all
            found[name] = [f"RAISED {problem!r}"[:300]]

    async def play_all(address: str) -> None:
        names = list(script)
        for start in range(0, len(names), 12):
            here = range(start, min(start + 12, len(names)))
            await asyncio.gather(*(play_one(names[n], f"{address}/{n}/mcp") for n in here))

    with ScriptedServer(answer) as server:
        asyncio.run(play_all(server.address))
    return found


def raised(found: Mapping[str, list[str] | None]) -> dict[str, Any]:
    return {name: told for name, told in found.items() if told and told[0].startswith("RAISED")}


def test_hostile_bodies_over_http_fail_as_calls() -> None:
    found = over_http({name: (method, [http(text)]) for name, (method, text) in BODIES.items()})
    assert raised(found) == {}
    assert len(found) == len(BODIES) >= 120


def test_hostile_http_fails_as_calls() -> None:
    found = over_http(RAW)
    assert raised(found) == {}
    assert len(found) == len(RAW) >= 120


def play_replies(*replies: Parts, head: str = "") -> list[str]:
    """The texts of calls that are answered so, one after another."""
    left = list(replies)

    def answer(asked: Asked) -> Parts | None:
        return left.pop(0) if asked.method == "tools/call" else None

    async def call_each(address: str) -> list[str]:
        session = await ThinClient().open(Server("s", "http", url=f"{address}/mcp"), LIMITS)
        try:
            found = [await session.call("f", {}) for _ in replies]
        finally:
            await session.close()
        return [str(each.content[0]["text"]) for each in found]

    with ScriptedServer(answer) as server:
        return asyncio.run(on_tools_loop(call_each(server.address)))


def test_hostile_bodies_over_pipes_fail_as_calls(tmp_path: Path) -> None:
    calls = {name: text for name, (method, text) in BODIES.items() if method == "tools/call"}
    uses = [stdio_command(tmp_path, {"tools/list": rpc(json.dumps({"tools": [{"name": n} for n in calls]})), **calls})]
    for number, name in enumerate(["null", "text", "empty", "batch", "half a document", "error of text"]):
        for method in ("initialize", "tools/list"):
            folder = tmp_path / f"{method[:5]}{number}"
            folder.mkdir()
            uses.append(stdio_command(folder, {method: BODIES[f"{method}: {name}"][1]}))

    async def play_all() -> list[Any]:
        plays = [play(*servers_of(use, ROOT), most=len(calls)) for use in uses]
        return await asyncio.wait_for(asyncio.gather(*plays, return_exceptions=True), 60)

    used, *others = asyncio.run(play_all())
    assert len(used) == len(calls) >= 40 and "done" not in used
    assert [each for each in others if not isinstance(each, (list, CallFailedError))] == []


DONE = b'{"jsonrpc": "2.0", "id": $ID, "result": {"content": [{"type": "text", "text": "d\xc3\xb6ne"}]}}'
FRAMES: dict[str, Parts] = {
    "LF": chunked(b"data: " + DONE + b"\n\n"),
    "CRLF": chunked(b"event: message\r\ndata: " + DONE + b"\r\n\r\n"),
    "CR": chunked(b"data: " + DONE + b"\r\r"),
    "CR and LF in two chunks": chunked(b"data: " + DONE + b"\r", b"\n\r", b"\n"),
    "comments, ids and retries": chunked(b": hi\n\nid: 4\nretry: 10\n:\ndata: " + DONE + b"\nnothing: 7\nid\n\n"),
    "several lines of data": chunked(
        b"data: " + DONE.replace(b", ", b",\ndata:").replace(b"\xc3\xb6", b"\\u00f6") + b"\n\n"
    ),
    "a letter in two chunks": chunked(b"data: " + DONE[:-10], DONE[-10:-9], DONE[-9:] + b"\n\n"),
    "byte by byte": chunked(*[bytes([byte]) for byte in b"data: " + DONE.replace(b"$ID", b"3") + b"\r\n\r\n"]),
    "no empty line": chunked(b"data: " + DONE + b"\n"),
    "no end of line": chunked(b"data: " + DONE),
    "no blank after the colon": chunked(b"data:" + DONE + b"\n\n"),
    "byte order mark": chunked(b"\xef\xbb\xbfdata: " + DONE + b"\n\n"),
    "a line of 600,000 letters": chunked(b":" + b"x" * 300_000, b"x" * 300_000 + b"\ndata: " + DONE + b"\n\n"),
    "others' answers before it": chunked(
        b"data: " + DONE.replace(b"$ID", b"99") + b"\n\ndata: <html>\n\ndata: " + DONE + b"\n\n"
    ),
}


@pytest.mark.parametrize("frames", FRAMES)
def test_event_streams_are_read_however_framed(frames: str) -> None:
    assert play_replies(FRAMES[frames]) == ["döne"]


IDS = {"text": b'"$ID"', "a float": b"$ID.0", "null": b"null"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", IDS)
def test_ids_are_read_as_servers_write_them(kind: str, stream: bool) -> None:
    told = DONE.replace(b"$ID", IDS[kind])
    assert play_replies(chunked(b"data: " + told + b"\n\n") if stream else [http(told)]) == ["döne"]


def test_the_answer_to_another_request_is_refused() -> None:
    with pytest.raises(CallFailedError) as failed:
        play_replies([http(DONE.replace(b"$ID", b"99"))])
    assert failed.value.kind == "transport"


def test_errors_without_an_id_are_the_calls(tmp_path: Path) -> None:
    told = '{"jsonrpc": "2.0", "id": %s, "error": {"code": -32700, "message": "unread"}}'
    for id in ("null", '"server-error"'):
        assert (
            play_replies([http(told % id, "400 Bad Request")], chunked(f"data: {told % id}\n\n".encode()))
            == ["unread"] * 2
        )
    use = stdio_command(tmp_path, {"f": told % "null"})
    assert asyncio.run(play(*servers_of(use, ROOT))) == ["unread"]


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_notifications_are_accepted_with_any_success(status: int) -> None:
    def answer(asked: Asked) -> Parts | None:
        return [http(b"", f"{status} Fine")] if asked.method.startswith("notifications/") else None

    with ScriptedServer(answer) as server:
        assert asyncio.run(play(Server("s", "http", url=f"{server.address}/mcp"))) == ["done"]


SECRETS = {"Authorization": "Bearer secret-token", "X-Api-Key": "secret-key"}


@pytest.mark.parametrize("kind", ["http", "sse", "dock"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_to_another_server_get_no_headers(kind: Any, status: int) -> None:
    with ScriptedServer() as other, ScriptedServer() as server:
        server.answer = lambda asked: [http(b"", f"{status} There", head=f"Location: {other.address}/mcp\r\n")]
        with pytest.raises(CallFailedError) as failed:
            asyncio.run(play(Server("s", kind, url=f"{server.address}/mcp", headers=SECRETS)))
        assert other.asked == []
        assert "secret" not in str(failed.value)


def test_a_redirected_end_of_a_session_leaks_nothing() -> None:
    def answer(asked: Asked) -> Parts | None:
        if asked.verb == "DELETE":
            return [http(b"", "307 There", head=f"Location: {other.address}/mcp\r\n")]
        return [http(rpc("{}"), head="Mcp-Session-Id: one\r\n")] if asked.method == "initialize" else None

    with ScriptedServer() as other, ScriptedServer(answer) as server:
        asyncio.run(play(Server("s", "http", url=f"{server.address}/mcp", headers=SECRETS)))
        assert "DELETE" in [each.verb for each in server.asked] and other.asked == []


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("location", ["/mcp/", "there", "HTTP://127.0.0.1:$PORT/x", "?a=b"])
def test_redirects_within_a_server_are_followed(location: str, status: int) -> None:
    def answer(asked: Asked) -> Parts | None:
        there = location.replace("$PORT", server.address.rpartition(":")[2])
        return [http(b"", f"{status} There", head=f"Location: {there}\r\n")] if asked.path == "/mcp" else None

    with ScriptedServer(answer) as server:
        assert asyncio.run(play(Server("s", "http", url=f"{server.address}/mcp", headers=SECRETS))) == ["done"]
        assert all(each.headers["x-api-key"] == "secret-key" for each in server.asked)


@pytest.mark.parametrize(
    "location", ["/mcp", "http://[::1", "http://127.0.0.1:99999999/", "ftp://127.0.0.1/", "//", "\\x"]
)
def test_redirects_that_lead_nowhere_fail_as_calls(location: str) -> None:
    with ScriptedServer(lambda asked: [http(b"", "307 There", head=f"Location: {location}\r\n")]) as server:
        with pytest.raises(CallFailedError):
            asyncio.run(play(Server("s", "http", url=f"{server.address}/mcp")))
        assert len(server.asked) < 20


@pytest.mark.parametrize(("name", "value"), [
    ("X-Key", "a\r\nHost: b"), ("X-Key", "a\n"), ("X-Key", "a\0"), ("X-Key", "schlüssel"), ("X-Key", "\ud800"),
    ("X Key", "a"), ("X:Key", "a"), ("", "a"), ("X-Key\r\nHost", "a"),
])  # fmt: skip
def test_headers_no_request_can_carry_are_refused(name: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"shop": {"url": "http://127.0.0.1:9/mcp", "headers": {name: value}}}}))
    with pytest.raises(ConfigError) as refused:
        servers_of(str(file), tmp_path)
    assert "mcpServers.shop.headers" in str(refused.value) and str(file) in str(refused.value)
    assert "Host: b" not in str(refused.value)


def front(told: Mapping[str, Any], busy: Sequence[str] = ()) -> tuple[list[str] | CallFailedError, list[Asked], float]:
    """What became of an attempt at a front that gives this episode after some `Retry-After`s, what it was asked, and
    the seconds that the attempt took."""
    waits = list(busy)
    result = {"supportedVersions": ["2026-07-28"], "_meta": {"ajet/episodes": "/episodes"}}

    def answer(asked: Asked) -> Parts | None:
        if asked.method == "server/discover":
            return [http(rpc(json.dumps(result)))]
        if asked.path == "/episodes":
            if waits:
                return [http(b"{}", "503 Full", head=f"Retry-After: {waits.pop(0)}\r\n")]
            return [http(json.dumps(told), "201 Created")]
        return None

    started = time.monotonic()
    with ScriptedServer(answer) as server:
        try:
            found: list[str] | CallFailedError = asyncio.run(
                play(Server("s", "http", url=f"{server.address}/mcp"), limits=PATIENT)
            )
        except CallFailedError as problem:
            found = problem
        return found, server.asked, time.monotonic() - started


EPISODE = {"episode": "e1", "path": "/e/e1/mcp"}


def test_a_front_gives_an_address_for_an_episode() -> None:
    found, asked, _ = front(EPISODE)
    assert found == ["done"]
    assert [each.path for each in asked if each.method == "tools/call"] == ["/e/e1/mcp"]
    assert ("DELETE", "/episodes/e1") in [(each.verb, each.path) for each in asked]


@pytest.mark.parametrize("told", [
    {}, {"episode": 7, "path": "/e"}, {"episode": "e", "path": None}, {"episode": "e", "path": "http://127.0.0.1:9/mcp"},
    {"episode": "e", "path": "//127.0.0.1:9/mcp"}, {"episode": "e", "path": "http://[::1"},
    {"episode": "e", "path": "ftp:x"},
    {**EPISODE, "url": "http://127.0.0.1:9/mcp"}, {**EPISODE, "url": "https://127.0.0.1/mcp"}, {**EPISODE, "url": "http://[::1"},
    {**EPISODE, "url": "http:///mcp"}, {**EPISODE, "url": "http://127.0.0.1:99999999/mcp"},
])  # fmt: skip
def test_odd_addresses_of_episodes_fail_as_calls(told: Mapping[str, Any]) -> None:
    found, asked, _ = front(told)
    assert isinstance(found, CallFailedError)
    assert [each for each in asked if each.method == "tools/call"] == []


@pytest.mark.parametrize("name", ["../../x", "a b", "a?b#c", "a\r\nX: y", "ü", "", "%2e%2e", "e" * 5_000])
def test_odd_names_of_episodes_close_without_exceptions(name: str) -> None:
    found, _, _ = front({**EPISODE, "episode": name})
    assert found == ["done"]


@pytest.mark.parametrize("value", ["0", "00", "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:00 -0000"])
def test_a_front_that_names_no_pause_is_not_flooded(value: str) -> None:
    found, asked, took = front(EPISODE, [value] * 3)
    assert found == ["done"] and took >= 0.3
    assert [each.path for each in asked].count("/episodes") == 4


@pytest.mark.parametrize(
    "value", ["", "1", "soon", "-5", "1.5", "١", "Wed, 99 Foo 2015 99:99:99 XYZ", "Wed, 21 Oct 99999 07:28:00 GMT"]
)
def test_a_full_front_is_asked_again_in_a_second(value: str) -> None:
    found, _, took = front(EPISODE, [value])
    assert found == ["done"] and 0.9 < took < 8


@pytest.mark.parametrize(
    "value",
    ["86400", "9" * 400, "9" * 5_000, email.utils.formatdate(time.time() + 86_400, usegmt=True)],
    ids=["day", "400 digits", "5,000 digits", "date"],
)
def test_a_front_that_is_full_for_long_is_left(value: str) -> None:
    found, asked, took = front(EPISODE, [value] * 3)
    assert isinstance(found, CallFailedError) and took < 4
    assert [each.path for each in asked].count("/episodes") == 1


DOCK: dict[str, Parts] = {
    "/servers": [http('{"servers": ["web"]}')],
    "/server/web/tools": [http('{"server": "web", "tools": [{"function": {"name": "web.f"}}]}')],
    "/tool/web.f": [http('{"content": "done"}')],
}
DOCK_BODIES = [
    "",
    "null",
    "7",
    '"x"',
    "[]",
    "{}",
    "NaN",
    "<html>",
    "[" * 50_000,
    '{"servers": null}',
    '{"servers": [null, [], {"a": 1}, 7]}',
    '{"servers": ["../..", "a/b", "", "\\ud800", "web"]}',
    json.dumps({"servers": [f"s{n}" for n in range(2_000)]}),
    '{"tools": null}',
    '{"tools": [null, 7, {}, {"function": null}, {"function": []}, {"name": null}]}',
    '{"tools": {"a": 1}}',
    '{"tools": [{"function": {"name": "web.", "parameters": 7}}]}',
    '{"tools": [{"function": {"name": "f", "parameters": null}}]}',
    json.dumps({"tools": [{"function": {"name": "f"}}] * 4_000}),
    '{"status_code": 1e999, "detail": NaN}',
    '{"status_code": true}',
    '{"status_code": 500, "detail": {"a": [1]}}',
    '{"status_code": 503}',
    '{"status_code": 999999999999999999999}',
    '{"status": "error", "content": null}',
    '{"content": {"error": null}}',
    '{"content": {"error": {"a": 1e999}}}',
    '{"content": NaN}',
    '{"content": [{"type": null}, {"type": "image_url"}]}',
    '{"content": [{"type": "image_url", "image_url": {"url": 7}}]}',
    '{"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}',
    '{"content": [{"type": "text", "text": null}]}',
    '{"boundary": [1], "status_code": 500}',
    '{"content": "\\ud800"}',
]


def test_hostile_replies_of_agentdock_fail_as_calls() -> None:
    cases = [(path, text) for path in DOCK for text in DOCK_BODIES]

    def answer(asked: Asked) -> Parts | None:
        number, _, path = asked.path.removeprefix("/").partition("/mcpapi")
        at, text = cases[int(number)]
        return [http(text)] if path == at else DOCK.get(path, [http("{}", "404 Not Found")])

    async def play_all(address: str) -> list[Any]:
        plays = [play(Server("s", "dock", url=f"{address}/{n}/mcpapi")) for n in range(len(cases))]
        return await asyncio.wait_for(asyncio.gather(*plays, return_exceptions=True), 60)

    with ScriptedServer(answer) as server:
        found = asyncio.run(play_all(server.address))
    assert [each for each in found if not isinstance(each, (list, CallFailedError))] == []


def sse(endpoint: str, *events: bytes, status: int = 202) -> tuple[list[str] | CallFailedError, list[Asked]]:
    """What became of an attempt at a server of the old transport that writes an event for each request."""
    called = threading.Semaphore(0)

    def stream() -> Iterator[Part]:
        yield from chunked(f"event: endpoint\r\ndata: {endpoint}\r\n\r\n".encode(), ended=False)
        for event in events:
            called.acquire(timeout=5)
            yield from chunked(event, ended=False)[1:]
        yield 1.5

    def answer(asked: Asked) -> Iterable[Part]:
        if asked.verb == "GET":
            return stream()
        if "id" in asked.message:
            called.release()
        return [http(b"", f"{status} Fine")]

    with ScriptedServer(answer) as server:
        try:
            return asyncio.run(play(Server("s", "sse", url=f"{server.address}/sse"))), server.asked
        except CallFailedError as problem:
            return problem, server.asked


REPLIES = [json.dumps({"jsonrpc": "2.0", "id": n + 1, "result": each}) for n, each in enumerate(RESULTS.values())]


def test_the_old_transport_is_read_however_framed() -> None:
    for end, lead in (("\r\n", "data: "), ("\n", ": x\ndata:"), ("\r", "id: 1\rdata: ")):
        events = [f"{lead}{each}{end}{end}".encode() for each in REPLIES]
        assert sse("/messages", *events)[0] == ["done"]


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9/m", "//127.0.0.1:9/m", "https://127.0.0.1/m", "http://[::1", "ftp:x", "", "http:/"]
)
def test_addresses_of_the_old_transport_stay_on_the_server(endpoint: str) -> None:
    found, asked = sse(endpoint)
    assert isinstance(found, CallFailedError)
    assert {each.path for each in asked} <= {"/sse", "/"}


@pytest.mark.parametrize("status", [301, 307, 404, 500])
def test_messages_of_the_old_transport_are_not_redirected(status: int) -> None:
    found, asked = sse("/messages", status=status)
    assert isinstance(found, CallFailedError) and found.kind == "transport"
    assert len([each for each in asked if each.verb == "POST"]) == 1


def test_a_server_that_only_asks_is_given_up(tmp_path: Path) -> None:
    ask = '{"jsonrpc": "2.0", "id": 1, "method": "roots/list"}'
    found, asked = sse("/messages", f"data: {ask}\n\n".encode() * 20_000)
    assert isinstance(found, CallFailedError) and len(asked) < 500
    use = stdio_command(tmp_path, {"tools/list": "\n".join([ask] * 20_000)})
    with pytest.raises(CallFailedError):
        asyncio.run(play(*servers_of(use, ROOT)))


@pytest.mark.parametrize(("kind", "data", "url"), [
    ("image/png", "AAAA", "data:image/png;base64,AAAA"), ("image/png", "AA\r\nAA\n", "data:image/png;base64,AAAA"),
    (None, "AAAA", "data:image/png;base64,AAAA"), ("image/svg+xml", "AAAA", "data:image/svg+xml;base64,AAAA"),
    ("image/png", "", ""), ("image/png", "not base64", ""), ("image/png", "AAA", ""), ("image/png", "\u00e4AAA", ""),
    ("text/html", "AAAA", ""), ("image/png,x", "AAAA", ""), ("image/png;base64,AAAA\n", "AAAA", ""),
    (["image/png"], "AAAA", ""), (7, "AAAA", ""), ("image/png", ["AAAA"], ""),
])  # fmt: skip
def test_images_no_request_can_carry_are_notes(kind: Any, data: Any, url: str) -> None:
    async def count(text: str) -> int:
        return len(text)

    result = asyncio.run(shown(Reply(({"type": "image", "mimeType": kind, "data": data},)), count, None))
    assert result.images == ((url,) if url else ())
    assert bool(result.text) is not bool(url)
