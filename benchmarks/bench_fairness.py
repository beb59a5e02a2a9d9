"""How long hostile requests hold a server's event loop, so that its other clients wait.

One gateway over a scripted engine, with the routes of `ajet serve`, and one observing proxy before it. While each
request is answered, the server is probed every 10 ms: the gateway by a call on its loop, the proxy by `/health`. The
longest answer is the loop's longest pause. Clients and servers share one process. Goal: at most 0.2 s at rest.

    python benchmarks/bench_fairness.py
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx

from tests.contract.test_observe import observed
from tests.hostile_requests import lattice, objects
from tests.served_fixtures import counter

GOAL = 0.2
TICK = 0.01
MESSAGES = [{"role": "user", "content": "hello"}]


def measure_pause(probe: Callable[[], object], request: Callable[[], httpx.Response]) -> tuple[float, float, int]:
    """Return (longest answer to the probe in seconds, seconds until the reply, its status) of one request."""
    longest, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest
        while not done.wait(TICK):
            asked = time.perf_counter()
            probe()
            longest = max(longest, time.perf_counter() - asked)

    watching = threading.Thread(target=watch)
    watching.start()
    started = time.perf_counter()
    status = request().status_code
    seconds = time.perf_counter() - started
    done.set()
    watching.join()
    return longest, seconds, status


def main() -> int:
    """Print a row for each request; 1 if the loop was held for longer than the goal."""
    worst = 0.0
    with counter(lambda _: "{}") as desk, tempfile.TemporaryDirectory() as folder:
        opened = desk.open(task="a")
        key = {"authorization": f"Bearer {opened['api_key']}"}
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": lattice(26)}}
        large = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"allOf": [{}] * 60_000}}}

        def chat(body: bytes, base: str = opened["base_url"]) -> httpx.Response:
            return httpx.post(f"{base}/chat/completions", content=body, headers=key, timeout=600)

        def ask(**fields: object) -> httpx.Response:
            return chat(json.dumps({"model": "ajet", "messages": MESSAGES, **fields}).encode())

        def begin(size: int) -> httpx.Response:
            row = b'{"task": {"main_query": "a", "metadata": {"a": ' + objects(size) + b"}}}"
            return desk.client.post("/episodes", content=row, timeout=600)

        many = {size: b'{"model": "ajet", "messages": ' + objects(size << 20) + b"}" for size in (8, 57)}
        few = b'{"model": "ajet", "messages": ' + objects(700_000) + b"}"
        own = lambda: asyncio.run_coroutine_threadsafe(asyncio.sleep(0), desk.gateway.loop).result(600)  # noqa: E731
        rows: list[tuple[str, Callable[[], httpx.Response]]] = [
            ("an ordinary request", ask),
            ("schema with 2^26 paths", lambda: ask(response_format=schema)),
            ("schema of 60,000 parts", lambda: ask(response_format=large)),
            ("chat, 700 kB of {}", lambda: chat(few)),
            ("chat, 8 MiB of {}", lambda: chat(many[8])),
            ("chat, 57 MiB of {}", lambda: chat(many[57])),
            ("chat, 60 MiB of text", lambda: ask(user="[{,:" * (15 << 20))),
            ("/episodes, 700 kB of {}", lambda: begin(700_000)),
            ("/episodes, 8 MiB of {}", lambda: begin(8 << 20)),
        ]
        with observed(opened["base_url"], Path(folder)) as proxy:
            seen: list[tuple[str, Callable[[], httpx.Response]]] = [
                ("observe, 700 kB of {}", lambda: chat(few, f"{proxy.url}/v1")),
                ("observe, 8 MiB of {}", lambda: chat(many[8], f"{proxy.url}/v1")),
                ("observe, 57 MiB of {}", lambda: chat(many[57], f"{proxy.url}/v1")),
            ]
            client = httpx.Client(timeout=600)
            health = lambda: client.get(f"{proxy.url}/health")  # noqa: E731
            for probe, (name, request) in [*((own, row) for row in rows), *((health, row) for row in seen)]:
                pause, seconds, status = measure_pause(probe, request)
                worst = max(worst, pause)
                print(f"{name:26} longest pause {pause:6.3f} s, answered {status} after {seconds:6.2f} s", flush=True)
    print(f"worst pause {worst:.3f} s, goal {GOAL} s")
    return int(worst > GOAL)


if __name__ == "__main__":
    sys.exit(main())
