"""What `environment.use` may say, what of a result is shown, and a conversation that is shortened."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from ajet.config import Experiment
from ajet.environment import chat_model, loop
from ajet.environment.files import read_yaml
from ajet.environment.loop import close_at_exit, process_local, tools_loop
from ajet.schema.errors import ConfigError
from ajet_mcp import Reply, servers_of
from ajet_mcp.agent import McpAgentWorkflow
from ajet_mcp.agent.conversation import Conversation, TokenCounts, forget
from ajet_mcp.reachable import services_of
from ajet_mcp.results import shown
from ajet_mcp.thin import server as http_server
from ajet_mcp.thin import stdio
from ajet_mcp.thin.messages import EventStream, header_value, mirrored
from ajet_sandbox.bubblewrap import list_program_args

AWORLD = {
    "mcpServers": {
        "aworld-mcp": {
            "type": "streamable-http",
            "url": "http://host:8000/mcp",
            "headers": {"Authorization": "Bearer ${MCP_SERVER_TOKEN}", "MCP_SERVERS": "a-server,b-server"},
            "timeout": 600,
            "sse_read_timeout": 600,
            "client_session_timeout_seconds": 300,
        },
        "files": {"command": "{python}", "args": ["files.py", "${ROOT:-/data}"], "env": {"KEY": "${env:OWN}"}},
        "old": {"type": "sse", "url": "http://host/sse"},
        "off": {"command": "x", "disabled": True},
    }
}


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_file_with_servers_as_aworld_and_claude_write_it(tmp_path, monkeypatch, suffix):
    monkeypatch.setenv("MCP_SERVER_TOKEN", "secret-token")
    monkeypatch.setenv("OWN", "1")
    (tmp_path / f"servers.{suffix}").write_text(json.dumps(AWORLD))
    http, files, old = servers_of(f"servers.{suffix}", tmp_path)
    assert (http.kind, http.headers["Authorization"], http.timeout) == ("http", "Bearer secret-token", 300)
    assert files.command == (sys.executable, "files.py", "/data") and (files.env, files.cwd) == ({"KEY": "1"}, tmp_path)
    assert old.kind == "sse" and "secret-token" not in repr(http)


def test_an_address_takes_the_token_and_a_command_the_projects_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MCP_SERVER_TOKEN", "secret-token")
    [http] = servers_of("https://host/e/1/mcp", tmp_path)
    assert http.headers == {"Authorization": "Bearer secret-token"}
    [stdio] = servers_of("{python} 'my server.py' --at {base}", tmp_path)
    assert stdio.command == (sys.executable, "my server.py", "--at", str(tmp_path)) and stdio.name == "my server"


def test_where_a_recorded_run_answers_no_server_is_asked_for_at_a_launch(tmp_path):
    (tmp_path / "before" / "episodes").mkdir(parents=True)
    away = {"use": "http://127.0.0.1:9/mcp"}
    for environment, asked in (
        (away, 1),
        ({**away, "replay": "before", "replay_miss": "live"}, 1),
        ({**away, "replay": "before"}, 0),
    ):
        tree = {"ajet": {"environment": environment, "rollout": {"user_workflow": "mcp_agent"}}}
        experiment = Experiment.from_dict(tree, base=tmp_path)
        assert len([*services_of(experiment)]) == asked
    McpAgentWorkflow.check(experiment.config)


WRONG = {
    "http:///mcp": "not the URL of",
    "nowhere.json": "nowhere.json does not exist",
    "gaia-locl": "gaia-locl is not an environment",
    "'unclosed": "not a valid command",
    "empty.json": "describes no servers",
    "both.json": "mcpServers.x: expected exactly one of url, command, image",
    "typo.json": "mcpServers.x.comand",
    "unset.json": "AJET_TEST_UNSET is not set",
}


@pytest.mark.parametrize("use", WRONG)
def test_what_cannot_be_used_is_said(tmp_path, monkeypatch, use):
    monkeypatch.delenv("AJET_TEST_UNSET", raising=False)
    for name, entry in (
        ("both", {"url": "http://a/mcp", "command": "b"}),
        ("typo", {"comand": "b"}),
        ("unset", {"command": "b", "env": {"X": "${AJET_TEST_UNSET}"}}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps({"mcpServers": {"x": entry}}))
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(ConfigError, match=WRONG[use]):
        servers_of(use, tmp_path)


def test_what_is_no_text_has_a_note_in_its_place():
    async def count(text):
        return len(text)

    image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    blocks = (
        {"type": "text", "text": "one"},
        image,
        {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "two"}},
        {"type": "resource", "resource": {"uri": "file:///b", "mimeType": "application/pdf", "blob": "AAAA"}},
        {"type": "resource_link", "uri": "file:///c", "name": "c"},
    )
    sees = asyncio.run(shown(Reply(blocks), count, None))
    assert sees.images == ("data:image/png;base64,AAAA",) and sees.content[1]["type"] == "image_url"
    blind = asyncio.run(shown(Reply(blocks), count, None, images=False))
    assert blind.content == blind.full_text and blind.text.splitlines() == [
        "one", "[image (image/png), which is not shown]", "[audio (audio/wav), which is not shown]", "two",
        "[a file that is no text: file:///b (application/pdf)]", "[c: file:///c]",
    ]  # fmt: skip
    assert asyncio.run(shown(Reply(structured={"a": 1}), count, None)).text == '{"a": 1}'
    cut = asyncio.run(shown(Reply(({"type": "text", "text": "ü" * 100},)), count, 10))
    assert cut.text == "ü" * 10 + "\n[cut: the first 10 of 100 tokens are shown]"


def test_events_come_whole_however_they_are_cut():
    stream = b": hello\r\n\r\nevent: endpoint\ndata: /messages\n\ndata: {\ndata: }\r\n\r\nid: 1\n\n"
    for size in (1, 2, 7, len(stream)):
        events = EventStream()
        found = [each for at in range(0, len(stream), size) for each in events.take(stream[at : at + size])]
        assert found == [("endpoint", "/messages"), ("message", "{\n}")]


def test_header_values_survive_http():
    assert header_value("read_file") == "read_file"
    assert header_value("é") == "=?base64?w6k=?=" and header_value(" a").startswith("=?base64?")
    schema = {"properties": {"a": {"x-mcp-header": "A"}, "b": {"properties": {"c": {"x-mcp-header": "C"}}}, "d": {}}}
    assert mirrored(schema, {"a": True, "b": {"c": 3}, "d": "no"}) == {"Mcp-Param-A": "true", "Mcp-Param-C": "3"}


def test_a_conversation_is_only_measured_where_bytes_do_not_tell():
    asked = []

    async def count(text):
        asked.append(text)
        return len(text) // 2

    talk = Conversation([{"role": "user", "content": "q"}], 1000, 100)
    assert asyncio.run(talk.would_overflow(count)) is False
    talk.replied({"role": "assistant", "content": "a"}, 500)
    talk.add({"role": "tool", "content": "x" * 100})
    assert asyncio.run(talk.would_overflow(count)) is False and asked == []
    talk.add({"role": "tool", "content": "x" * 500})
    assert asyncio.run(talk.would_overflow(count)) is False and len(asked) == 2
    talk.add({"role": "tool", "content": "x" * 500})
    assert asyncio.run(talk.would_overflow(count)) is True
    assert [each["content"] for each in talk.for_summary()[2:-1]] == ["[left out: the context is full]"] * 3


def test_a_fork_has_nothing_of_what_lives_on_its_parents_loop(monkeypatch):
    tables = [http_server._servers, stdio._shared, chat_model._sessions, process_local({})]
    for table in tables:
        monkeypatch.setitem(table, "the parent's", object())
    monkeypatch.setattr(loop, "ENDS_S", 240.0)
    parents, ended = tools_loop(), []

    async def end():
        ended.append(os.getpid())

    close_at_exit(end)
    child = os.fork()
    if child == 0:
        anew = False
        try:
            anew = not any(tables) and tools_loop() is not parents
            close_at_exit(end)
            loop._close_at_exit(tools_loop())
        finally:
            os._exit(0 if anew and ended == [os.getpid()] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(tables) and tools_loop() is parents


def test_what_no_attempt_changes_is_found_out_once(tmp_path):
    file = tmp_path / "servers.yaml"
    file.write_text("mcpServers: {}")
    first = read_yaml(file)
    assert read_yaml(file) is first and list_program_args() is list_program_args()
    file.write_text("mcpServers: {one: {}}")
    assert read_yaml(file) == {"mcpServers": {"one": {}}}


def test_a_run_asks_once_whether_its_model_sees_images():
    asked = []

    class Client:
        async def post(self, path, *, cast_to, body):
            asked.append(body["messages"][0]["content"])
            return {"input_tokens": 5}

    async def attempt():
        count = TokenCounts(Client(), "run")
        assert await count.sees_images() and await count("a") == 1

    forget("run")
    asyncio.run(attempt())
    asyncio.run(attempt())
    assert len(asked) == 4, "an image, a message's frame, and each text"
    forget("run")
    asyncio.run(attempt())
    assert len(asked) == 7
