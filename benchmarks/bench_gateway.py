"""The gateway's cost: latency, CPU and throughput of streamed calls, beside the litellm proxy and a bare ASGI relay.

Every server has one process and streams replies of 32 tokens, a token an event, to 1, 100 and 1,000 clients at once
(each with a connection and a session of its own; every prompt is another), with an engine that takes no time and one
that takes 20 ms a token. `direct` is that engine called without any server. `relay` is an ASGI app under uvicorn that
reads the request as JSON and writes the engine's tokens as events: no template, no tokeniser, no capture. `litellm` is
its proxy with one worker, before that relay. The load comes from another process over loopback. A stream counts as
left open when it has not ended within --patience seconds.

Limits: throughput at least 15 times litellm's and a third of the relay's, p99 below litellm's, no stream left open.
(At 20 ms a token nobody is faster than the engine, so there the factor over litellm is the smaller of 15 and 0.8 of
what the engine called directly reaches.)

    python benchmarks/bench_gateway.py [--litellm-venv DIR | --no-litellm] [--patience S] [--only CLIENTS:PACE ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from ratios import kept

TOKENS = 32
TEXT = " ".join(["so we add the two numbers, carry one and go on"] * 8)
CASES = [(clients, pace) for pace in (0.0, 0.02) for clients in (1, 100, 1000)]
REQUESTS = {(1, 0.0): 300, (100, 0.0): 3000, (1000, 0.0): 4000, (1, 0.02): 20, (100, 0.02): 600, (1000, 0.02): 4000}
FEWER = {(1, 0.0): 60, (100, 0.0): 300, (1000, 0.0): 1000, (1, 0.02): 20, (100, 0.02): 200, (1000, 0.02): 1000}
"""For litellm, which takes 30 ms of CPU a request."""
SYSTEM = "You are a careful assistant that solves sums step by step and gives the answer in a box. " * 3


@dataclass
class Load:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    """Of each stream, from its request to its end."""
    open: int = 0
    failed: int = 0
    events: int = 0
    wall: float = 0.0

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds) or [float("inf")]
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Client(asyncio.Protocol):
    """One connection that asks, reads to the end, and asks again: as little work as can be."""

    def __init__(self, load: Load, place: dict[str, Any], numbers: Any, ended: asyncio.Event) -> None:
        self._load, self._place, self._numbers, self._ended = load, place, numbers, ended
        self._begun, self._tail, self._waits = 0.0, b"", False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._load.events += data.count(b"data: ")
        self._tail = (self._tail + data)[-512:]
        if self._tail.endswith(b"0\r\n\r\n"):
            if b"[DONE]" in self._tail:
                self._load.seconds.append(time.perf_counter() - self._begun)
            else:
                self._load.failed += 1
            self._ask()
        elif b"\r\n\r\n{" in self._tail and self._tail.endswith(b"}"):
            self._load.failed += 1
            self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        self._load.failed += self._waits
        self._waits = False
        self._end()

    def _ask(self) -> None:
        self._tail, self._waits = b"", False
        number = next(self._numbers, None)
        if number is None:
            self._transport.close()
            self._end()
            return
        body = {
            "model": "scripted",
            "stream": True,
            "max_tokens": TOKENS,
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"What is {number} + {number * 7}?"},
            ],
        }
        content = json.dumps(body).encode()
        head = (
            f"POST {self._place['path']} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self._place['key']}\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._begun, self._waits = time.perf_counter(), True
        self._transport.write(head.encode() + content)

    def _end(self) -> None:
        self._ended.set()


async def drive(port: int, places: Sequence[dict[str, Any]], requests: int, patience: float) -> Load:
    """`requests` streams over as many connections as there are places."""
    load, loop = Load(), asyncio.get_running_loop()
    numbers = iter(range(requests))
    ends = [asyncio.Event() for _ in places]
    began = time.perf_counter()
    clients: list[Client] = []
    for place, ended in zip(places, ends, strict=True):
        client = Client(load, place, numbers, ended)
        clients.append(client)
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    waiting = [asyncio.ensure_future(ended.wait()) for ended in ends]
    await asyncio.wait(waiting, timeout=patience)
    load.wall = time.perf_counter() - began
    load.open = sum(client._waits for client in clients)
    for task in waiting:
        task.cancel()
    for client in clients:
        client._waits = False
        client._transport.abort()
    return load


# The servers, each in a process of its own.


def scripted(pace: float) -> tuple[Any, Any]:
    """The engine and the renderer."""
    from transformers import AutoTokenizer

    from ajet.engine.embedded import embedded_folder
    from ajet.engine.scripted import ScriptedEngine
    from ajet.tokens import Renderer

    renderer = Renderer(AutoTokenizer.from_pretrained(embedded_folder("tiny-tools", lambda *_: None)))
    ids = renderer.encode(TEXT).tolist()[:TOKENS]
    assert len(ids) == TOKENS and not set(ids) & set(renderer.end_ids)
    return ScriptedEngine(lambda request: ids, chunk=1, pace=pace), renderer


def serve_gateway(pace: float) -> None:
    from ajet.engine.contract import Sampling
    from ajet.gateway import Gateway
    from ajet.rollout.garbage_collection import rare_collections

    engine, renderer = scripted(pace)
    gateway = Gateway(engine, renderer, max_model_len=2000, max_response_tokens=500).start()
    port = int(gateway.base_url.rpartition(":")[2].removesuffix("/v1"))
    sessions = [
        gateway.open(str(number), key=(0, number, 0), sampling=Sampling(500), trainable=None) for number in range(1000)
    ]
    keys = [session("a", "a", None).api_key for session in sessions]
    say({"port": port, "places": [{"path": "/v1/chat/completions", "key": key} for key in keys]})
    with rare_collections():  # as in a run
        sys.stdin.read()
    captured = [call for session in sessions for call in session.close().calls]
    assert all(len(call.response_ids) == TOKENS for call in captured), "every token is captured"
    gateway.close()


def serve_relay(pace: float) -> None:
    import socket

    import uvicorn

    engine, renderer = scripted(pace)
    from ajet.engine.contract import DrawKey, Sampling, TokenRequest
    from ajet.gateway.server import new_loop

    words = {token: renderer.decode([token]) for token in renderer.encode(TEXT).tolist()}
    prompt, sampling = renderer.encode("?"), Sampling(TOKENS)

    async def relay(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] != "POST":  # litellm asks for models when it starts
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        asked = json.loads(body)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": asked["model"]}
        finish = None
        async for chunk in engine.generate(TokenRequest(prompt, sampling, DrawKey(0, 0, 0, 0))):
            finish = chunk.finish
            delta = {"role": "assistant", "content": words[chunk.ids[0]]}
            event = {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
            data = b"data: " + json.dumps(event).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": data, "more_body": True})
        event = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        data = b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": False})

    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(4096)
    say({"port": listening.getsockname()[1], "places": [{"path": "/v1/chat/completions", "key": "k"}] * 1000})
    config = uvicorn.Config(relay, lifespan="off", log_config=None, access_log=False, server_header=False)
    with asyncio.Runner(loop_factory=new_loop) as runner:  # the gateway's own kind
        runner.run(uvicorn.Server(config).serve(sockets=[listening]))


def serve_direct(pace: float) -> None:
    """No server: the engine in this process, as many streams at once as there would be clients."""
    from ajet.engine.contract import DrawKey, Sampling, TokenRequest
    from ajet.gateway.server import new_loop

    engine, renderer = scripted(pace)
    prompt = renderer.encode("?")

    async def stream() -> float:
        began = time.perf_counter()
        async for _ in engine.generate(TokenRequest(prompt, Sampling(TOKENS), DrawKey(0, 0, 0, 0))):
            pass
        return time.perf_counter() - began

    async def everything(clients: int, requests: int) -> dict[str, Any]:
        numbers = iter(range(requests))
        seconds: list[float] = []

        async def client() -> None:
            for _ in numbers:
                seconds.append(await stream())

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(client() for _ in range(clients)))
        return {"seconds": seconds, "wall": time.perf_counter() - began, "cpu": time.process_time() - cpu}

    say({})
    for line in sys.stdin:
        clients, requests = json.loads(line)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            say(runner.run(everything(clients, requests)))


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


@contextmanager
def server(kind: str, pace: float) -> Any:
    """A server of this file in a process of its own: the process and what it says of itself."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, __file__, "--serve", kind, "--pace", str(pace)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            if kind == "relay":
                process.terminate()
            process.wait(60)
    assert kind == "relay" or process.returncode == 0, f"the {kind} failed"


@contextmanager
def litellm_proxy(venv: Path, upstream: int) -> Any:
    """The litellm proxy before a server on port `upstream`."""
    import socket
    import urllib.request

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = {"model": "openai/scripted", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "k"}
    config = {"model_list": [{"model_name": "scripted", "litellm_params": model}]}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.yaml").write_text(json.dumps(config))
        key = f"sk-{secrets.token_hex(16)}"
        env = {**os.environ, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}
        env["LITELLM_MASTER_KEY"] = key
        command = [str(venv / "bin/litellm"), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--num_workers", "1", "--telemetry", "False"]
        log = open(Path(folder) / "log", "w")  # noqa: SIM115
        with subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log) as process:
            try:
                for _ in range(240):
                    try:
                        urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=2).read()
                        break
                    except OSError:
                        if process.poll() is not None:
                            raise SystemExit((Path(folder) / "log").read_text()[-2000:]) from None
                        time.sleep(0.5)
                yield process, {"port": port, "places": [{"path": "/v1/chat/completions", "key": key}] * 1000}
            finally:
                process.terminate()
                process.wait(60)
                log.close()


def litellm_venv(chosen: Path | None) -> Path | None:
    """A virtual environment with the proxy, made if need be; None where it cannot be."""
    venv = chosen or Path(tempfile.gettempdir()) / "ajet-bench-litellm"
    if not (venv / "bin/litellm").exists():
        try:
            subprocess.run([sys.executable, "-m", "uv", "venv", "-q", str(venv)], check=True)
            python = str(venv / "bin/python")
            subprocess.run([sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python, "litellm[proxy]"])
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"litellm: not compared, its environment cannot be made ({error})")
            return None
    if not (venv / "bin/litellm").exists():
        print("litellm: not compared, it cannot be installed")
        return None
    return venv


def cpu_of(process: subprocess.Popen[Any]) -> float:
    """CPU seconds of a process and its children."""
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    return sum(times.user + times.system for times in (each.cpu_times() for each in family))


@dataclass
class Result:
    """One server in one case."""

    load: Load
    requests: int
    cpu: float
    """Seconds a request."""

    @property
    def rate(self) -> float:
        return len(self.load.seconds) / self.load.wall

    def row(self, name: str, base: float) -> str:
        load = self.load
        added = [(load.percentile(share) - base) * 1e3 for share in (0.5, 0.99)]
        left = f"{load.open} open, {load.failed} failed" if load.open or load.failed else ""
        return (
            f"  {name:8} {self.rate:8.0f} streams/s   {self.cpu * 1e3:7.2f} ms CPU a stream "
            f"({self.cpu / TOKENS * 1e6:6.1f} us a token)   added p50 {added[0]:8.1f} ms  p99 {added[1]:8.1f} ms   "
            f"{load.events / max(len(load.seconds), 1):4.0f} events  {left}"
        )


def measure(
    server_: tuple[subprocess.Popen[Any], dict[str, Any]], clients: int, requests: int, patience: float
) -> Result:
    process, told = server_
    asyncio.run(drive(told["port"], told["places"][:clients], min(requests, 4 * clients), patience))  # warm
    before = cpu_of(process)
    load = asyncio.run(drive(told["port"], told["places"][:clients], requests, patience))
    return Result(load, requests, (cpu_of(process) - before) / max(len(load.seconds), 1))


def compare(clients: int, pace: float, venv: Path | None, patience: float) -> bool:
    """One case; True when its limits are kept."""
    case, results = (clients, pace), {}
    print(f"{clients} clients at once, {pace * 1e3:g} ms a token", flush=True)
    with server("direct", pace) as (process, _):
        process.stdin.write(json.dumps([clients, REQUESTS[case]]) + "\n")
        process.stdin.flush()
        direct = json.loads(process.stdout.readline())
    base = sorted(direct["seconds"])[len(direct["seconds"]) // 2]
    spent = direct["cpu"] / REQUESTS[case]
    print(f"  direct   {REQUESTS[case] / direct['wall']:8.0f} streams/s   {spent * 1e3:7.2f} ms CPU a stream")
    with server("gateway", pace) as running:
        results["ours"] = measure(running, clients, REQUESTS[case], patience)
        print(results["ours"].row("ours", base), flush=True)
    with server("relay", pace) as running:
        results["relay"] = measure(running, clients, REQUESTS[case], patience)
        print(results["relay"].row("relay", base), flush=True)
        if venv is not None:
            with litellm_proxy(venv, running[1]["port"]) as proxy:
                results["litellm"] = measure(proxy, clients, FEWER[case], patience)
                print(results["litellm"].row("litellm", base), flush=True)
    return judge(results, REQUESTS[case] / direct["wall"], clients, pace)


def judge(results: dict[str, Result], direct: float, clients: int, pace: float) -> bool:
    ours, relay, litellm = results["ours"], results["relay"], results.get("litellm")
    limits = [("a third of the relay's throughput", ours.rate / relay.rate, 1 / 3)]
    if litellm is not None:
        bound = 0.8 * direct / litellm.rate if pace else float("inf")
        limits.append(("litellm's throughput", ours.rate / litellm.rate, min(15.0, bound)))
        limits.append(("litellm's p99 over ours", litellm.load.percentile(0.99) / ours.load.percentile(0.99), 1.0))
    good = ours.load.open == ours.load.failed == 0
    for name, ratio, limit in limits:
        good = kept(f"{name}, {clients} at once, {pace * 1e3:g} ms a token", ratio, at_least=limit) and good
        print(f"    {name}: {ratio:.2f} (limit {limit:.2f}){'' if ratio >= limit else '  MISSED'}")
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all limits are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm-venv", type=Path)
    parser.add_argument("--no-litellm", action="store_true")
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--only", nargs="*", default=[], metavar="CLIENTS:PACE")
    parser.add_argument("--serve", choices=["gateway", "relay", "direct"], help=argparse.SUPPRESS)
    parser.add_argument("--pace", type=float, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        {"gateway": serve_gateway, "relay": serve_relay, "direct": serve_direct}[chosen.serve](chosen.pace)
        return 0
    wanted = [(int(clients), float(pace)) for clients, _, pace in (only.partition(":") for only in chosen.only)]
    venv = None if chosen.no_litellm else litellm_venv(chosen.litellm_venv)
    good = [compare(*case, venv, chosen.patience) for case in wanted or CASES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
