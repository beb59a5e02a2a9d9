"""Tools over MCP: ajet's client against the `mcp` package's.

Both clients open a session over streamable HTTP and call a tool `echo` with 100 characters; in turns, so that a load
on the machine hits both. Once against a server of a few lines that costs little, so that the clients are compared;
once against FastMCP's own, which costs more a call than a thin client does. Then idle attempts are opened, and what
Python holds for them counted. Calls go the way that an attempt's go: from its own event loop to the tools' loop and
back.

Prints: calls a second of ours over the SDK's, one after another; the processor time of a call on the client's side
(of all threads of this process; the least of the rounds, to which a loaded machine adds); the memory of an idle
attempt. Exit code 1 where a goal is missed; those of a call are held against the server that costs little.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import socket
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from ratios import kept

from ajet.environment.loop import on_tools_loop
from ajet_mcp import Limits, Server, Session, Toolset
from ajet_mcp.thin import ThinClient

CALLS, ROUNDS, IDLE = 150, 5, 200
TEXT = "x" * 100
RATIO, CPU_MS, IDLE_KIB = 3.0, 0.6, 100.0
LIGHT = """
import json, sys
from aiohttp import web

INFO = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "light", "version": "1"}}

async def post(request):
    asked = json.loads(await request.read())
    if "id" not in asked:
        return web.Response(status=202)
    answer, status = {"result": INFO}, 200
    if asked["method"] == "tools/list":
        answer = {"result": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}}
    elif asked["method"] == "tools/call":
        answer = {"result": {"content": [{"type": "text", "text": asked["params"]["arguments"]["text"]}]}}
    elif asked["method"] != "initialize":
        answer, status = {"error": {"code": -32601, "message": "no such method"}}, 404
    named = {"Mcp-Session-Id": "1"} if asked["method"] == "initialize" else {}
    return web.json_response({"jsonrpc": "2.0", "id": asked["id"], **answer}, status=status, headers=named)

async def ended(request):
    return web.Response()

app = web.Application()
app.router.add_post("/mcp", post)
app.router.add_delete("/mcp", ended)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
"""
FASTMCP = """
import sys
from mcp.server.fastmcp import FastMCP

app = FastMCP("echo", port=int(sys.argv[1]), log_level="ERROR")

@app.tool()
def echo(text: str) -> str:
    return text

app.run("streamable-http")
"""


def main() -> int:
    print(f"{CALLS} calls of echo a round, {ROUNDS} rounds each in turns; the server is a process of its own\n")
    met = True
    for name, code in (("a server that costs little", LIGHT), ("FastMCP's server", FASTMCP)):
        port = _free_port()
        process = subprocess.Popen([sys.executable, "-c", code, str(port)], stderr=subprocess.DEVNULL)
        try:
            _wait_for(port)
            server = Server("echo", "http", url=f"http://127.0.0.1:{port}/mcp")
            met &= asyncio.run(_measured(server, name, judged=code is LIGHT))
            if code is LIGHT:
                met &= asyncio.run(_idle(server))
        finally:
            process.kill()
            process.wait()
    return 0 if met else 1


async def _measured(server: Server, named: str, *, judged: bool) -> bool:
    ours = await on_tools_loop(ThinClient().open(server, Limits()))
    async with streamablehttp_client(server.url) as (read, write, _), ClientSession(read, write) as theirs:
        await theirs.initialize()
        calls = {"thin": partial(_call_ours, ours), "sdk": partial(_call_theirs, theirs)}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for call in calls.values():
            await _round(call, 20)
        for _ in range(ROUNDS):
            for name, call in calls.items():
                found[name].append(await _round(call, CALLS))
    await on_tools_loop(ours.close())
    rate = {name: statistics.median(each[0] for each in rounds) for name, rounds in found.items()}
    cpu = {name: min(each[1] for each in rounds) for name, rounds in found.items()}
    print(f"{named}:")
    for name, label in (("thin", "thin"), ("sdk", "SDK's")):
        print(f"  {label:5}  {rate[name]:6.0f} calls/s   {cpu[name]:5.2f} ms CPU a call")
    both = rate["thin"] / rate["sdk"]
    print(f"  ratio {both:.1f} in calls a second, {cpu['sdk'] / cpu['thin']:.1f} in processor time\n")
    cheap = kept(f"ms of CPU a call, {named}", cpu["thin"], at_most=CPU_MS if judged else None)
    return kept(f"calls a second against the SDK's, {named}", both, at_least=RATIO if judged else None) and cheap


async def _call_ours(session: Session) -> None:
    reply = await on_tools_loop(session.call("echo", {"text": TEXT}))
    assert not reply.failed


async def _call_theirs(session: ClientSession) -> None:
    reply = await session.call_tool("echo", {"text": TEXT})
    assert not reply.isError


async def _round(call: Callable[[], Awaitable[None]], calls: int) -> tuple[float, float]:
    """Return (calls a second, ms of processor time a call)."""
    began, spent = time.perf_counter(), _cpu()
    for _ in range(calls):
        await call()
    return calls / (time.perf_counter() - began), (_cpu() - spent) / calls * 1e3


async def _idle(server: Server) -> bool:
    async def opened() -> Toolset:
        return await Toolset.open([server], keep=lambda use: None, count=_characters)

    toolsets = [await opened()]
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    toolsets += [await opened() for _ in range(IDLE)]
    gc.collect()
    each = (tracemalloc.get_traced_memory()[0] - before) / IDLE / 1024
    tracemalloc.stop()
    for toolset in toolsets:
        await toolset.close()
    print(f"an idle attempt of the thin client, its tools listed: {each:.1f} KiB (of {IDLE})\n")
    return kept("KiB of an idle attempt", each, at_most=IDLE_KIB)


async def _characters(text: str) -> int:
    return len(text)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait_for(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the server does not start")


if __name__ == "__main__":
    sys.exit(main())
