"""How long hostile requests hold a server's event loop, so that its other clients wait.

One gateway over a scripted engine, with the routes of `ajet serve`, and one observing proxy before it. While each
request is answered, the server is probed every 10 ms: the gateway by a call on its loop, the proxy by `/health`. The
longest answer is the loop's longest pause. A process of its own sends the requests. Goal: at most 0.2 s on a machine
that does nothing else; the pause at rest says how far it is from that.

    python benchmarks/bench_fairness.py [PART OF A ROW'S NAME ...]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx

from ajet.rollout.runtime import freeze_start
from tests.support.hostile_requests import lattice, objects
from tests.support.observed import observed
from tests.support.served import KEY, start_serving

GOAL = 0.2
TICK = 0.01
REST_S = 3.0
MESSAGES = [{"role": "user", "content": "hello"}]
CLIENT = """
import http.client, sys, time, urllib.parse
url, key, file = sys.argv[1:]
body = open(file, "rb").read()
parts = urllib.parse.urlsplit(url)
connection = http.client.HTTPConnection(parts.netloc, timeout=600)
started = time.perf_counter()
connection.request("POST", parts.path, body, {"authorization": f"Bearer {key}", "content-type": "application/json"})
reply = connection.getresponse()
reply.read()
print(reply.status, time.perf_counter() - started)
"""


def measure_pause(probe: Callable[[], object], work: Callable[[], None]) -> float:
    """Return the longest answer to the probe, in seconds, while `work` goes on."""
    longest, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest
        while not done.wait(TICK):
            asked = time.perf_counter()
            probe()
            longest = max(longest, time.perf_counter() - asked)

    watching = threading.Thread(target=watch)
    watching.start()
    work()
    done.set()
    watching.join()
    return longest


def post(url: str, key: str, body: bytes, folder: Path) -> tuple[str, float]:
    """Send a request from a process of its own. Return (status, seconds until the reply)."""
    file = folder / "body"
    file.write_bytes(body)
    sent = subprocess.run([sys.executable, "-c", CLIENT, url, key, str(file)], capture_output=True, check=True)
    status, seconds = sent.stdout.decode().split()
    return status, float(seconds)


def requests() -> list[tuple[str, str, bytes]]:
    """Return (name, server, body) of each request."""
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": lattice(26)}}
    large = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"allOf": [{}] * 60_000}}}

    def chat(**fields: object) -> bytes:
        return json.dumps({"model": "ajet", "messages": MESSAGES, **fields}).encode()

    def values(size: int) -> bytes:
        return b'{"model": "ajet", "messages": ' + objects(size) + b"}"

    def task(size: int) -> bytes:
        return b'{"task": {"main_query": "a", "metadata": {"a": ' + objects(size) + b"}}}"

    rows = [
        ("schema with 2^26 paths", "chat", chat(response_format=schema)),
        ("schema of 60,000 parts", "chat", chat(response_format=large)),
        ("700 kB of {}", "episodes", task(700_000)),
        ("8 MiB of {}", "episodes", task(8 << 20)),
    ]
    both = [
        ("an ordinary request", chat()),
        ("700 kB of {}", values(700_000)),
        ("8 MiB of {}", values(8 << 20)),
        ("57 MiB of {}", values(57 << 20)),
        ("60 MiB of text", chat(user="[{,:" * (15 << 20))),
        ("60 MiB of newlines", chat(user="\n" * (30 << 20))),
        ("60 MiB of long integers", chat()[:-1] + b', "user": [' + b",".join([b"9" * 400] * (150_000)) + b"]}"),
        ("9 MiB of numbers", chat()[:-1] + b', "user": [' + b",".join([b"1.2345678901234567"] * 490_000) + b"]}"),
        ("90,000 messages", chat(messages=[{"role": "user", "content": f"{n}"} for n in range(90_000)])),
    ]
    return [*rows, *((name, server, body) for server in ("chat", "observe") for name, body in both)]


def main(parts: list[str]) -> int:
    """Print a row for each request; 1 if the loop was held for longer than the goal."""
    worst = 0.0
    with start_serving(lambda _: "{}") as desk, tempfile.TemporaryDirectory() as name, freeze_start():
        folder = Path(name)
        opened = desk.open(task="a")
        own = lambda: desk.gateway.run_on_loop(asyncio.sleep(0)).result(600)  # noqa: E731
        with observed(opened["base_url"], folder) as proxy, httpx.Client(timeout=600) as client:
            health = lambda: client.get(f"{proxy.url}/health")  # noqa: E731
            urls = {
                "chat": (f"{opened['base_url']}/chat/completions", opened["api_key"]),
                "observe": (f"{proxy.url}/v1/chat/completions", opened["api_key"]),
                "episodes": (opened["base_url"].removesuffix("/v1") + "/episodes", KEY),
            }
            for server, probe in (("chat", own), ("observe", health)):
                print(f"{server:9}{'at rest':26}pause {measure_pause(probe, lambda: time.sleep(REST_S)):6.3f} s")
            for name, server, body in requests():
                if parts and not any(part in f"{server} {name}" for part in parts):
                    continue
                told = "", 0.0

                def send(server: str = server, body: bytes = body) -> None:
                    nonlocal told
                    told = post(*urls[server], body, folder)

                pause = measure_pause(health if server == "observe" else own, send)
                worst = max(worst, pause)
                print(f"{server:9}{name:26}pause {pause:6.3f} s, answered {told[0]} after {told[1]:6.2f} s", flush=True)
    print(f"worst pause {worst:.3f} s, goal {GOAL} s")
    return int(worst > GOAL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
