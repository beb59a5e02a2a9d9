"""`ajet env up`: one address before an environment's servers, for clients of every era, with real server processes."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import threading
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from textwrap import dedent

import httpx
import psutil
import pytest
from rich.console import Console

from ajet.record.process_identity import ProcessIdentity
from ajet.schema.errors import ConfigError, UserError
from ajet_environments.hosting.lifetime import build_table, print_address, start_environment, stop_environment
from ajet_mcp import CallFailedError
from ajet_mcp.running_environments import running, state_file, token_for
from tests.support.ajet_process import start
from tests.support.mcp_fixtures import attempt, lives
from tests.support.waiting import until

pytestmark = pytest.mark.slow
NOTES = Path(__file__).parents[3] / "tests" / "support" / "notes_server.py"
META = "io.modelcontextprotocol/"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the environments of these tests are known."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AJET_STATE", str(folder))
        patch.delenv("SOME_KEY", raising=False)
        patch.delenv("MCP_SERVER_TOKEN", raising=False)
        yield folder


@pytest.fixture(scope="module")
def shop(place):
    """One that runs, for all tests."""
    file = place / "shop.yaml"
    server = f"{{command: {sys.executable}, args: [-I, {NOTES}]"
    file.write_text(
        dedent(f"""
            name: shop
            mcpServers:
              notes: {server}, aliases: [notes-server], instances: 4, reset: forget}}
              all: {server}, per: shared}}
              slow: {server}, spare: 0, timeout: 0.3}}
              paid: {{command: nothing, requires: [SOME_KEY]}}
            capacity: 5
        """)
    )
    found = start_environment(str(file), port=0)
    yield found
    if running("shop") is not None:
        stop_environment("shop")


class Client:
    """Speaks to a front by plain HTTP."""

    def __init__(self, shop, path="/mcp", **headers):
        self.base, self.path = shop.address, path
        self.headers = {**({"Authorization": f"Bearer {shop.token}"} if shop.token else {}), **headers}

    def post(self, message, path=None, **headers):
        return httpx.post(
            self.base + (path or self.path), headers={**self.headers, **headers}, json=message, timeout=60
        )

    def ask(self, method, **params):
        """In the handshake era."""
        return self.post({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})

    def ask_modern(self, method, **params):
        params["_meta"] = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {}}
        name = {"Mcp-Name": params["name"]} if "name" in params else {}
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, **name}
        return self.post({"jsonrpc": "2.0", "id": "a", "method": method, "params": params}, **headers)

    def call(self, name, **arguments):
        return said(self.ask("tools/call", name=name, arguments=arguments))

    def error(self, name, **arguments):
        return self.ask("tools/call", name=name, arguments=arguments).json()["error"]


def said(reply) -> str:
    return reply.json()["result"]["content"][0]["text"]


@pytest.fixture
def episodes(shop):
    """Makes episodes, and ends those that are left."""
    made = []

    def create(*servers, **headers):
        told = Client(shop).post({"servers": list(servers)} if servers else {}, "/episodes")
        assert told.status_code == 201, told.text
        made.append(told.json()["episode"])
        return Client(shop, told.json()["path"], **headers)

    yield create
    for name in made:
        httpx.delete(f"{shop.address}/episodes/{name}", headers=Client(shop).headers)


def test_it_says_how_it_is_reached_and_is_known_to_its_user_alone(shop, capsys):
    print_address(shop)
    first, *lines = capsys.readouterr().out.splitlines()
    assert json.loads(first) == {"ip": "127.0.0.1", "port": shop.port, "token": shop.token}
    url = f"export MCP_SERVER_URL=http://127.0.0.1:{shop.port}/mcp"
    assert lines == [url, f"export MCP_SERVER_TOKEN={shop.token}", "Start mcp server success."]
    assert stat.S_IMODE(state_file("shop").stat().st_mode) == 0o600
    assert token_for(shop.url) == shop.token and token_for("http://127.0.0.1:1/mcp") == ""
    assert token_for(f"http://localhost:{shop.port}/mcp") == shop.token
    console = Console(width=200, file=StringIO())
    console.print(build_table())
    shown = console.file.getvalue()
    assert (
        f"{shop.url}  notes, all, slow " in shown
        and "shop, not started: paid: it needs the environment variables SOME_KEY" in shown
    )
    with pytest.raises(UserError, match="running already"):
        start_environment(str(state_file("shop").parents[1] / "shop.yaml"))


def test_two_episodes_do_not_see_each_other_and_both_eras_see_one(shop, episodes):
    first, second = episodes("notes"), episodes("notes")
    first.call("note", text="a")
    assert said(second.ask_modern("tools/call", name="note", arguments={"text": "b"})) == "b"
    assert (first.call("notes"), second.call("notes")) == ("a", "b")
    assert said(first.ask_modern("tools/call", name="notes", arguments={})) == "a"
    listed = first.ask_modern("tools/list").json()["result"]
    assert listed["resultType"] == "complete" and listed["tools"] == first.ask("tools/list").json()["result"]["tools"]
    discovered = first.ask_modern("server/discover").json()["result"]
    assert "2026-07-28" in discovered["supportedVersions"] and "ajet/episodes" not in discovered["_meta"]
    assert Client(shop).ask_modern("server/discover").json()["result"]["_meta"]["ajet/episodes"] == "/episodes"


def test_an_instance_that_was_used_is_as_new_for_the_next(shop, episodes):
    processes = set()
    for text in "abcdef":
        one = episodes("notes")
        assert one.call("notes") == ""
        one.call("note", text=text)
        processes.add(one.call("whoami"))
        httpx.delete(f"{shop.address}/episodes/{one.path.split('/')[2]}", headers=one.headers)
    assert len(processes) < 6, "they were reset, and not all started again"


def test_a_session_is_an_episode_for_who_knows_nothing_else(shop):
    client = Client(shop, MCP_SERVERS="notes-server")
    opened = client.ask("initialize", protocolVersion="2025-06-18", capabilities={})
    assert opened.json()["result"]["protocolVersion"] == "2025-06-18"
    client.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
    assert client.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
    assert client.call("note", text="z") == "z" and client.call("notes") == "z"
    assert httpx.get(shop.url, headers=client.headers).status_code == 405
    assert httpx.delete(shop.url, headers=client.headers).status_code == 204
    assert client.ask("tools/list").status_code == 404, "the client initializes again"


def test_servers_are_chosen_and_names_that_two_have_are_told_apart(shop, episodes):
    one = episodes()
    names = {tool["name"] for tool in one.ask("tools/list").json()["result"]["tools"]}
    assert {"notes__note", "all__note"} <= names and "note" not in names
    one.call("notes__note", text="mine")
    assert one.call("notes__notes") == "mine" and "mine" not in one.call("all__notes")
    one.headers["MCP_SERVERS"] = "all"
    assert "note" in {tool["name"] for tool in one.ask("tools/list").json()["result"]["tools"]}
    one.headers["MCP_SERVERS"] = "all,one-of-another-environment"
    assert "note" in {tool["name"] for tool in one.ask("tools/list").json()["result"]["tools"]}
    other = Client(shop, MCP_SERVERS="x,all,y")
    given = other.post({}, "/episodes").json()
    assert given["lacks"] == ["x", "y"]
    httpx.delete(f"{shop.address}/episodes/{given['episode']}", headers=other.headers)
    one.headers["MCP_SERVERS"] = "nothing"
    assert "no server 'nothing'" in one.ask("tools/list").json()["error"]["message"]
    unknown = Client(shop).post({"servers": ["nothing"]}, "/episodes")
    assert unknown.status_code == 400 and "notes" in unknown.text


def test_who_named_no_episode_reaches_shared_servers_only(shop):
    client = Client(shop, MCP_SERVERS="all")
    assert said(client.ask_modern("tools/call", name="whoami", arguments={})).isdigit()
    client.headers["MCP_SERVERS"] = "notes"
    refused = client.ask_modern("tools/call", name="note", arguments={"text": "x"})
    assert refused.status_code == 400 and "keeps state for each episode" in refused.json()["error"]["message"]


def test_a_server_that_dies_loses_its_episode_and_no_other(shop, episodes):
    first, second = episodes("notes"), episodes("notes")
    second.call("note", text="safe")
    error = first.error("die")
    assert error["data"]["boundary"] == "environment"
    assert "environment was lost" in first.error("notes")["message"], "it goes on with no other instance"
    assert second.call("notes") == "safe"


def test_a_tool_that_hangs_ends_with_its_time(episodes):
    one = episodes("slow")
    assert one.error("wait")["data"]["boundary"] == "environment"


def test_beyond_its_capacity_it_says_so(shop, episodes):
    for _ in range(5):
        episodes("notes")
    full = Client(shop).post({}, "/episodes")
    assert full.status_code == 503 and full.headers["retry-after"] and "capacity" in full.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 421),
    ],
)
def test_who_is_not_let_in_is_told_why(shop, headers, status):
    for path in ("/mcp", "/episodes", "/mcpapi/tools", "/metrics"):
        assert Client(shop, path, **headers).ask("ping").status_code == status
    assert httpx.get(f"{shop.address}/health").json()["status"] == "success"


def test_garbage_is_answered(shop, episodes):
    one = episodes("notes")
    send = dict(headers=one.headers, timeout=60)
    broken = httpx.post(one.base + one.path, content=b"{", **send)
    assert broken.status_code == 400 and broken.json()["error"]["code"] == -32700
    huge = httpx.post(one.base + one.path, content=b" " * (5 << 20), **send)
    assert huge.status_code == 413 and "4 MiB" in huge.text
    for nested in (b"[" * 99_999, b"9" * 9_999):
        assert httpx.post(one.base + one.path, content=nested, **send).status_code == 400
    for servers in (3, [{}], "notes"):
        refused = httpx.post(f"{one.base}/episodes", json={"servers": servers}, **send)
        assert refused.status_code == 400 and "a list of names" in refused.text
    assert one.post([1]).json()["error"]["code"] == -32600
    assert one.ask("tools/call", name=3).json()["error"]["code"] == -32602
    assert one.ask("resources/list").json()["error"]["code"] == -32601
    mismatch = one.post(
        {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {f"{META}protocolVersion": "2026-07-28"}}},
        **{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"},
    )
    assert mismatch.status_code == 400 and mismatch.json()["error"]["code"] == -32020


def test_the_interface_of_agentdock_is_on_the_same_port(shop, episodes):
    client = Client(shop)
    get = lambda path: httpx.get(f"{shop.address}/mcpapi/{path}", headers=client.headers).json()  # noqa: E731
    assert get("servers") == {"servers": ["notes", "all", "slow", "paid"]}
    assert "notes.note" in [tool["name"] for tool in get("tools")["tools"]]
    listed = get("server/notes-server/tools")["tools"]
    assert len(listed) == 6
    assert {tool["type"] for tool in listed} == {"function"}
    assert listed[0]["function"]["name"] == "note" and listed[0]["function"]["parameters"]["required"] == ["text"]
    episode = episodes("notes").path.split("/")[2]
    call = lambda tool, **arguments: client.post(arguments, f"/mcpapi/tool/{tool}", **{"x-episode": episode})  # noqa: E731
    assert call("notes.note", text="q").json() == {"content": [{"type": "text", "text": "q"}]}
    failed = call("notes.nothing")
    assert failed.status_code == 200 and failed.json()["status_code"] == 404


def open_episodes(shop) -> int:
    return httpx.get(f"{shop.address}/health").json()["episodes"]


@pytest.mark.parametrize("how", ["name", "address", "agentdock"])
def test_each_attempt_of_ours_is_an_episode_of_its_own(shop, how):
    """By whichever way `environment.use` names it: what keeps state is reached, and nobody else's is seen."""
    use = {"name": "shop", "agentdock": f"{shop.address}/mcpapi"}.get(how, shop.url)
    before = open_episodes(shop)

    async def plays():
        async with attempt(use) as one, attempt(use) as other:
            assert open_episodes(shop) == before + 2
            for text in "ab":
                await asyncio.gather(
                    one.use("notes__note", {"text": text}), other.use("notes__note", {"text": text * 2})
                )
            seen = [(await each.use("notes__notes", {})).text for each in (one, other)]
            assert seen == ["a, b", "aa, bb"]
            shared = {(await each.use("all__whoami", {})).text for each in (one, other)}
            assert len(shared) == 1, "a shared server is one for all"
            wrong = await one.use("notes__note", {"text": 1})
            assert wrong.error == "arguments"
            with pytest.raises(CallFailedError, match="environment was lost"):
                await one.use("notes__die", {})
            assert (await other.use("notes__notes", {})).text == "aa, bb"
        return one

    one = asyncio.run(plays())
    assert one.uses[-1].error == "environment" and open_episodes(shop) == before, "both were ended"


def test_one_waits_at_a_front_that_is_full(shop, episodes):
    for _ in range(4):
        episodes("notes")

    async def plays():
        async with attempt(shop.url):
            begun = asyncio.create_task(_opens(shop.url))
            await asyncio.sleep(0.2)
            assert not begun.done()
        return await begun

    assert asyncio.run(plays()) > 0


async def _opens(use) -> int:
    async with attempt(use) as tools:
        return len(tools.definitions)


def test_an_episode_that_was_ended_is_lost(shop):
    async def plays():
        async with attempt("shop") as one:
            address = one.toolset._sessions[0]._channel._episode.address
            httpx.delete(address, headers=Client(shop).headers)
            with pytest.raises(CallFailedError, match="knows this episode") as lost:
                await one.use("notes__note", {"text": "x"})
            return lost.value

    assert asyncio.run(plays()).lost


def test_it_drains_and_leaves_no_process(place, tmp_path):
    file = tmp_path / "brief.yaml"
    file.write_text(f"mcpServers:\n  notes: {{command: {sys.executable}, args: [-I, {NOTES}]}}\n")
    found, refused = [], []

    def start_one():
        try:
            found.append(start_environment(str(file), port=0, token=False))
        except UserError as problem:
            refused.append(problem.what)

    both = [threading.Thread(target=start_one) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    (brief,) = found
    assert refused == [f"The environment brief is running already, at {brief.url}."], "two starts at once are one"
    replace(brief, process=ProcessIdentity.of(os.getpid())).forget()
    assert running("brief") == brief, "another's end is not its own"
    assert brief.token == ""
    children = psutil.Process(brief.process.pid).children(recursive=True)
    assert children
    client = Client(brief, httpx.post(f"{brief.address}/episodes", json={}).json()["path"])
    client.call("note", text="x")
    children += psutil.Process(brief.process.pid).children(recursive=True)
    stop_environment("brief")
    assert running("brief") is None and not state_file("brief").exists()
    assert until(lambda: not any(map(lives, (child.pid for child in children))))
    with pytest.raises(UserError, match="No environment named brief runs"):
        stop_environment("brief")


def test_in_the_foreground_its_token_is_the_one_that_is_given_and_episodes_that_were_left_are_ended(place, tmp_path):
    file = tmp_path / "pod.yaml"
    file.write_text(f"idle: 1\nmcpServers:\n  notes: {{command: {sys.executable}, args: [-I, {NOTES}], spare: 0}}\n")
    log = tmp_path / "log"
    process = start(
        "env", "up", "pod.yaml", "--foreground", "--port", "0", cwd=tmp_path, log=log, MCP_SERVER_TOKEN="abc"
    )
    until = time.monotonic() + 240
    while running("pod") is None and time.monotonic() < until:
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    pod = running("pod")
    assert pod.token == "abc"
    left = httpx.post(f"{pod.address}/episodes", json={}, headers={"Authorization": "Bearer abc"}).json()["path"]
    while httpx.get(f"{pod.address}/health").json()["episodes"] and time.monotonic() < until:
        time.sleep(0.05)
    client = Client(pod, left, Authorization="Bearer abc")
    assert client.ask("ping").status_code == 404, "who is gone for a second has left"
    process.terminate()
    assert process.wait(240) == 0 and running("pod") is None, log.read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mcpServers: {}", "mcpServers"),
        ("mcpServers: {a: {command: x, spare: -1}}", r"mcpServers\.a\.spare"),
        ("mcpServers: {a: {command: x}}\nspeed: 1", "speed"),
        ("mcpServers: {a: {command: x}}\nenv_file: no.env", r"no\.env"),
        ("mcpServers: {a: {command: no-such-program}}", "a: .*cannot be started|no-such-program"),
    ],
)
def test_what_cannot_be_an_environment_is_one_screen(place, tmp_path, text, said):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises((ConfigError, UserError), match=said):
        start_environment(str(tmp_path / "bad.yaml"), port=0)


def test_only_this_machine_reaches_one_without_a_token():
    with pytest.raises(UserError, match="without a key"):
        start_environment("x.yaml", host="0.0.0.0", token=False)


def test_calls_of_many_episodes_run_side_by_side(episodes):
    made = [episodes("notes") for _ in range(4)]
    threads = [threading.Thread(target=lambda one=one: [one.call("note", text="x") for _ in range(5)]) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.call("notes") for one in made] == ["x, x, x, x, x"] * 4
