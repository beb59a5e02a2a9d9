"""The thin MCP client: whatever a server sends is a result or a CallFailedError."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import web

from ajet.schema.tool_use import ToolUse
from ajet_mcp.contract import CallFailedError, Limits, Reply
from ajet_mcp.results import shown
from ajet_mcp.servers import servers_of
from ajet_mcp.toolset import Toolset
from tests.mcp_servers import hostile_replies
from tests.mcp_servers.hostile_replies import CALL, LIST, ODD, PLACES

ROOT = Path(__file__).parents[3]
LIMITS = Limits(start=3.0, call=0.3, close=0.2)


async def use_server(use: str) -> tuple[list[str], list[str]]:
    """Names of the tools, and the texts or failures of one call of each."""
    uses: list[ToolUse] = []

    async def count(text: str) -> int:
        return len(text)

    tools = await Toolset.open(servers_of(use, ROOT), keep=uses.append, count=count, limits=LIMITS)
    async with tools:
        names = [each["function"]["name"] for each in tools.definitions]
        json.dumps(tools.definitions, ensure_ascii=False).encode()  # a model can be shown them
        texts: list[str] = []
        for name in names:
            try:
                texts.append((await tools.use(name, {"a": "x"})).text)
            except CallFailedError as problem:
                texts.append(f"failed: {problem}")
    return names, texts


async def is_survived(use: str) -> str:
    """Empty where the server was used or refused with CallFailedError; else what was raised."""
    try:
        await use_server(use)
    except CallFailedError:
        pass
    except Exception as problem:  # noqa: BLE001 - the test lists them all
        return f"{use}: {problem!r}"
    return ""


async def serve(kinds: Sequence[tuple[str, str]], then: list[str]) -> list[str]:
    handled: set[str] = set()

    async def handle(request: web.Request) -> web.Response:
        kind, place = kinds[int(request.match_info["at"])]
        handled.add(place)
        asked = json.loads(await request.read())
        if "id" not in asked:
            return web.Response(status=202)
        if asked["method"] == "server/discover":
            return web.Response(status=400)
        reply = {"id": asked["id"], **hostile_replies.answer(asked["method"], kind, place)}
        return web.Response(text=json.dumps(reply), content_type="application/json")

    app = web.Application()
    app.router.add_post("/{at}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        for at in range(len(kinds)):
            then.append(await is_survived(f"http://127.0.0.1:{port}/{at}"))
    finally:
        await runner.cleanup()
    assert len(handled) == len(kinds)
    return then


@pytest.mark.parametrize("kind", sorted(ODD))
def test_odd_replies_over_http_fail_as_calls(kind: str) -> None:
    found = asyncio.run(serve([(kind, place) for place in PLACES], []))
    assert [each for each in found if each] == []


def stdio(kind: str, place: str) -> str:
    return f"env PYTHONPATH={ROOT} {sys.executable} -m tests.mcp_servers.hostile_stdio {kind} {place}"


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("null", f"{LIST}:result.tools"), ("number", f"{LIST}:result.tools"), ("deep", f"{CALL}:result.content"),
        ("surrogate", f"{LIST}:result.tools.0.name"), ("list", f"{LIST}:result.tools.0.annotations"),
        ("huge", f"{CALL}:id"), ("crlf", f"{CALL}:error"),
    ],
)  # fmt: skip
def test_odd_replies_over_pipes_fail_as_calls(kind: str, place: str) -> None:
    assert asyncio.run(is_survived(stdio(kind, place))) == ""


@pytest.mark.parametrize(
    ("kind", "place"),
    [("object", "none"), ("null", f"{LIST}:result.tools.0.inputSchema.properties"),
     ("null", f"{LIST}:result.tools.0.annotations"), ("list", f"{LIST}:result.tools.0._meta")],
)  # fmt: skip
def test_nulls_of_servers_read_as_empty(kind: str, place: str) -> None:
    assert asyncio.run(use_server(stdio(kind, place))) == (["f"], ["done"])


def test_an_empty_text_shows_structured_content() -> None:
    async def count(text: str) -> int:
        return len(text)

    reply = Reply(({"type": "text", "text": ""},), structured={"a": 1})
    assert json.loads(asyncio.run(shown(reply, count, None)).text) == {"a": 1}
