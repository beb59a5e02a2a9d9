"""What the address in front of an environment costs a call: calls of one MCP server directly, and through the front.

The server is the `mcp` SDK's (streamable HTTP, tool `echo`, 100 characters) in a process of its own, the front is
`ajet env up` before it. Clients: ours, and the SDK's. Beside the front stands a relay made of the same libraries
(uvicorn, aiohttp) that understands nothing and checks nothing: what they cost by themselves. Rounds are interleaved.

Limits: at most 0.6 ms of processor time a call in the front's process, at most 1 ms more at the median; with the
SDK's client at least 0.9 of the direct rate.

    python benchmarks/bench_environment_front.py [--calls N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
import psutil
from ratios import kept

SERVER = """
import sys
from mcp.server.fastmcp import FastMCP
server = FastMCP("echo", host="127.0.0.1", port=int(sys.argv[1]), log_level="ERROR")
@server.tool()
def echo(text: str) -> str:
    "Echo it."
    return text
server.run("streamable-http")
"""
RELAY = """
import sys
import aiohttp, uvicorn
FROM, TO = int(sys.argv[1]), sys.argv[2]
PASSED = (b"mcp-session-id", b"mcp-protocol-version", b"accept", b"content-type")
opened = []
async def relay(scope, receive, send):
    if not opened:
        opened.append(aiohttp.ClientSession())
    body = (await receive())["body"]
    headers = {name.decode(): value.decode() for name, value in scope["headers"] if name in PASSED}
    async with opened[0].request(scope["method"], TO, data=body, headers=headers) as reply:
        found = await reply.read()
        back = [(name.encode(), reply.headers[name].encode()) for name in ("content-type", "mcp-session-id")
                if name in reply.headers]
    back.append((b"content-length", str(len(found)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": back})
    await send({"type": "http.response.body", "body": found})
uvicorn.run(relay, port=FROM, access_log=False, log_level="error", lifespan="off")
"""
TEXT = "x" * 100


async def main(calls: int, rounds: int) -> int:
    from ajet_environments.hosting.lifetime import start_environment, stop_environment
    from ajet_mcp.contract import Limits
    from ajet_mcp.servers import Server
    from ajet_mcp.thin import ThinClient

    with tempfile.TemporaryDirectory() as folder:
        os.environ["AJET_STATE"] = folder
        direct, server = _start(SERVER, Path(folder, "server.py"), "/mcp")
        relay, relaying = _start(RELAY, Path(folder, "relay.py"), "/mcp", direct)
        file = Path(folder, "bench.yaml")
        file.write_text(f"mcpServers: {{echo: {{url: '{direct}'}}}}\n")
        front = start_environment(str(file), port=0)
        headers = {"Authorization": f"Bearer {front.token}"}
        path = httpx.post(f"{front.address}/episodes", headers=headers, json={}).json()["path"]
        through = front.address + path
        watched = {"front": psutil.Process(front.process.pid), "relay": psutil.Process(relaying.pid)}
        try:
            async with AsyncExitStack() as stack:
                client = ThinClient()
                thin = {
                    "direct": await client.open(Server("d", "http", url=direct), Limits()),
                    "front": await client.open(Server("f", "http", url=through, headers=headers), Limits()),
                    "relay": await client.open(Server("r", "http", url=relay), Limits()),
                }
                sdk = {"direct": await _sdk(stack, direct, {}), "front": await _sdk(stack, through, headers)}
                ours = {way: (lambda s=s: s.call("echo", {"text": TEXT})) for way, s in thin.items()}
                theirs = {way: (lambda s=s: s.call_tool("echo", {"text": TEXT})) for way, s in sdk.items()}
                median, cpu, _ = await _compare(ours, calls, rounds, watched)
                _, _, rate = await _compare(theirs, calls, rounds, {})
                for session in thin.values():
                    await session.close()
        finally:
            stop_environment("bench")
            relaying.kill()
            server.kill()
    added = median["front"] - median["direct"]
    held = rate["front"] / rate["direct"]
    print(f"ours: direct {median['direct']:.2f} ms, through the front {median['front']:.2f} ms at the median")
    print(
        f"processor time of the front: {cpu['front']:.2f} ms a call (goal 0.6), {cpu['front'] / cpu['relay']:.2f} x the"
    )
    print(f"relay's {cpu['relay']:.2f} ms; added at the median: {added:.2f} ms (goal 1)")
    print(f"the SDK's client: {held:.2f} of the direct rate (goal 0.9)")
    limits = [
        kept("ms of CPU a call", cpu["front"], at_most=0.6),
        kept("CPU against the relay", cpu["front"] / cpu["relay"]),
        kept("ms added at the median", added, at_most=1.0),
        kept("the SDK's calls against direct", held, at_least=0.9),
    ]
    return int(not all(limits))


async def _compare(
    ways: dict[str, Any], calls: int, rounds: int, watched: dict[str, psutil.Process]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """(median ms, processor ms a call of the process that is watched, calls a second), by way."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    spent = dict.fromkeys(watched, 0.0)
    for call in ways.values():
        await call()
    for _ in range(rounds):
        for way, call in ways.items():
            before = _seconds(watched.get(way))
            for _ in range(calls):
                begun = time.perf_counter()
                await call()
                times[way].append(time.perf_counter() - begun)
            if way in watched:
                spent[way] += _seconds(watched[way]) - before
    median = {way: statistics.median(each) * 1000 for way, each in times.items()}
    cpu = {way: each * 1000 / (calls * rounds) for way, each in spent.items()}
    return median, cpu, {way: len(each) / sum(each) for way, each in times.items()}


def _seconds(process: psutil.Process | None) -> float:
    if process is None:
        return 0.0
    times = process.cpu_times()
    return times.user + times.system


async def _sdk(stack: AsyncExitStack, url: str, headers: dict[str, str]) -> Any:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    reading, writing, _ = await stack.enter_async_context(streamablehttp_client(url, headers=headers))
    session = await stack.enter_async_context(ClientSession(reading, writing))
    await session.initialize()
    return session


def _start(source: str, program: Path, path: str, *arguments: str) -> tuple[str, subprocess.Popen[bytes]]:
    """(its address, the process) of a program whose first argument is its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program.write_text(source)
    server = subprocess.Popen([sys.executable, str(program), str(port), *arguments], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}{path}"
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            httpx.get(url)
            return url, server
        except httpx.HTTPError:
            time.sleep(0.1)
    raise SystemExit(f"{program.name} did not start")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.calls, options.rounds)))
