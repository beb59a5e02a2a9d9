"""The gateway's cost: latency, CPU and throughput of streamed calls, beside the litellm proxy and a bare ASGI relay.

Every server has one process and streams replies of 32 tokens to 1, 100 and 1,000 clients at once (each with a
connection and a session of its own; every prompt is another), with an engine that takes no time and one that takes
20 ms a token. `direct` is that engine called without any server. `relay` is an ASGI app under uvicorn that reads the
request as JSON and writes the engine's tokens as events, a token an event: no template, no tokeniser, no capture.
`litellm` is its proxy with one worker, before that relay. The load comes from another process over loopback. A stream
counts as left open when it has not ended within --patience seconds.

The gateway lets tokens gather when more than 16 clients wait (ajet/gateway/reply.py), and then writes fewer
events than there are tokens: beside the bare relay it does less of that work. So each row has the events of a stream,
and `gathering` is the same relay with the gateway's own rule, for how long tokens gather: the ratio to it is of equal
work, as far as the two are as late. `canned`, without engine time, is the same server before an app that answers each
request with the same bytes in one part: the least that any app costs there.

Limits: throughput at least 15 times litellm's, half of the bare relay's without engine time and 0.95 of it at 20 ms a
token, at most 0.4 ms of processor time a stream without engine time, p99 below litellm's, no stream left open or
failed, of a relay's neither. (At 20 ms a token nobody is faster than the engine, so there the factor over litellm is
the smaller of 15 and 0.8 of what the engine called directly reaches.) The ratio to the gathering relay is kept, without
a limit.

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
from collections.abc import Coroutine, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from ratios import kept
from stream_clients import TOKENS, Load, drive

T = TypeVar("T")
TEXT = " ".join(["so we add the two numbers, carry one and go on"] * 8)
CASES = [(clients, pace) for pace in (0.0, 0.02) for clients in (1, 100, 1000)]
REQUESTS = {(1, 0.0): 300, (100, 0.0): 3000, (1000, 0.0): 4000, (1, 0.02): 20, (100, 0.02): 600, (1000, 0.02): 4000}
FEWER = {(1, 0.0): 60, (100, 0.0): 300, (1000, 0.0): 1000, (1, 0.02): 20, (100, 0.02): 200, (1000, 0.02): 1000}
"""For litellm, which takes 30 ms of CPU a request."""
RELAYS = ("relay", "gathering", "canned")
"""Ended by a signal: uvicorn serves until then."""
HALF, NEARLY, CPU_MS = 0.5, 0.95, 0.4
"""Of the bare relay's throughput without engine time, and at 20 ms a token; milliseconds of processor time a stream."""


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
    from ajet.rollout.runtime import reduce_collections

    engine, renderer = scripted(pace)
    gateway = Gateway(engine, renderer, max_model_len=2000, max_response_tokens=500).start()
    port = int(gateway.base_url.rpartition(":")[2].removesuffix("/v1"))
    sessions = [
        gateway.open(str(number), key=(0, number, 0), sampling=Sampling(500), trainable=None) for number in range(1000)
    ]
    keys = [session("a", "a", None).api_key for session in sessions]
    say({"port": port, "places": [{"path": "/v1/chat/completions", "key": key} for key in keys]})
    with reduce_collections():  # as in a run
        sys.stdin.read()
    captured = [call for session in sessions for call in session.close().calls]
    assert all(len(call.response_ids) == TOKENS for call in captured), "every token is captured"
    gateway.close()


def serve_relay(pace: float, gathers: int = 0) -> None:
    from bare_relay import relay

    engine, renderer = scripted(pace)
    words = {token: renderer.decode([token]) for token in renderer.encode(TEXT).tolist()}
    serve(relay(engine, renderer.encode("?"), words, tokens=TOKENS, gathers=gathers))


def serve_canned() -> None:
    from bare_relay import canned

    serve(canned(b"data: " + b"." * 700 + b"\n\ndata: [DONE]\n\n"))  # as long as the gateway's reply in one event


def serve(app: Any) -> None:
    """The app under uvicorn, on the gateway's own kind of loop."""
    import socket

    import uvicorn

    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(4096)
    say({"port": listening.getsockname()[1], "places": [{"path": "/v1/chat/completions", "key": "k"}] * 1000})
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False)
    run(uvicorn.Server(config).serve(sockets=[listening]))


def serve_direct(pace: float) -> None:
    """No server: the engine in this process, as many streams at once as there would be clients."""
    from ajet.engine.contract import DrawKey, Sampling, TokenRequest

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
        say(run(everything(clients, requests)))


def run(work: Coroutine[Any, Any, T]) -> T:
    """On a loop of the gateway's own kind."""
    from ajet.gateway.server import new_loop

    loop = new_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


@contextmanager
def server(kind: str, pace: float, clients: int) -> Any:
    """A server of this file in a process of its own: the process and what it says of itself."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, __file__, "--serve", kind, "--pace", str(pace), "--clients", str(clients)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.stdin.close()
            if kind in RELAYS:
                process.terminate()
            process.wait(60)
    assert kind in RELAYS or process.returncode == 0, f"the {kind} failed"


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
                else:
                    raise SystemExit("the litellm proxy does not answer")
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
            f"  {name:9} {self.rate:8.0f} streams/s   {self.cpu * 1e3:7.2f} ms CPU a stream "
            f"({self.cpu / TOKENS * 1e6:6.1f} us a token)   added p50 {added[0]:8.1f} ms  p99 {added[1]:8.1f} ms   "
            f"{load.events_a_stream:5.1f} events  {left}"
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
    requests = REQUESTS.get(case, 4 * clients)
    print(f"{clients} clients at once, {pace * 1e3:g} ms a token", flush=True)
    with server("direct", pace, clients) as (process, _):
        process.stdin.write(json.dumps([clients, requests]) + "\n")
        process.stdin.flush()
        direct = json.loads(process.stdout.readline())
    base = sorted(direct["seconds"])[len(direct["seconds"]) // 2]
    spent = direct["cpu"] / requests
    print(f"  direct    {requests / direct['wall']:8.0f} streams/s   {spent * 1e3:7.2f} ms CPU a stream")
    with server("gateway", pace, clients) as running:
        results["ours"] = measure(running, clients, requests, patience)
        print(results["ours"].row("ours", base), flush=True)
    with server("relay", pace, clients) as running:
        results["relay"] = measure(running, clients, requests, patience)
        print(results["relay"].row("relay", base), flush=True)
        if venv is not None:
            with litellm_proxy(venv, running[1]["port"]) as proxy:
                results["litellm"] = measure(proxy, clients, FEWER.get(case, clients), patience)
                print(results["litellm"].row("litellm", base), flush=True)
    if not pace:
        with server("canned", pace, clients) as running:
            print(measure(running, clients, requests, patience).row("canned", base), flush=True)
    with server("gathering", pace, clients) as running:
        results["gathering"] = measure(running, clients, requests, patience)
        print(results["gathering"].row("gathering", base), flush=True)
    return judge(results, requests / direct["wall"], clients, pace)


def judge(results: dict[str, Result], direct: float, clients: int, pace: float) -> bool:
    """Keep and print the ratios; True when the limits are kept."""
    ours, litellm = results["ours"], results.get("litellm")
    case = f"{clients} at once, {pace * 1e3:g} ms a token"
    whole = [results[name].load for name in ("ours", "relay", "gathering")]
    good = all(load.open == load.failed == 0 for load in whole)
    if not good:
        print("    streams were left open, or failed: MISSED")

    def told(name: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> None:
        nonlocal good
        within = kept(f"{name}, {case}", value, at_least=at_least, at_most=at_most)
        good = within and good
        limit = f"at least {at_least:.2f}" if at_least is not None else f"at most {at_most}" if at_most else "no limit"
        print(f"    {name}: {value:.2f} ({limit}){'' if within else '  MISSED'}")

    for name, peer, limit in (
        ("the relay's throughput", results["relay"], NEARLY if pace else HALF),
        ("the gathering relay's throughput", results["gathering"], None),
    ):
        told(name, ours.rate / peer.rate, at_least=limit)
        print(f"      events a stream: ours {ours.load.events_a_stream:.1f}, its {peer.load.events_a_stream:.1f}")
    kept(f"events a stream, {case}", ours.load.events_a_stream)
    told("ms of processor time a stream", ours.cpu * 1e3, at_most=None if pace else CPU_MS)
    if litellm is not None:
        bound = 0.8 * direct / litellm.rate if pace else float("inf")
        told("litellm's throughput", ours.rate / litellm.rate, at_least=min(15.0, bound))
        told("litellm's p99 over ours", litellm.load.percentile(0.99) / ours.load.percentile(0.99), at_least=1.0)
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all limits are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm-venv", type=Path)
    parser.add_argument("--no-litellm", action="store_true")
    parser.add_argument("--patience", type=float, default=60.0)
    parser.add_argument("--only", nargs="*", default=[], metavar="CLIENTS:PACE")
    parser.add_argument("--serve", choices=["gateway", "direct", *RELAYS], help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pace", type=float, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        if chosen.serve == "gathering":
            serve_relay(chosen.pace, chosen.clients)
        elif chosen.serve == "canned":
            serve_canned()
        else:
            {"gateway": serve_gateway, "relay": serve_relay, "direct": serve_direct}[chosen.serve](chosen.pace)
        return 0
    wanted = [(int(clients), float(pace)) for clients, _, pace in (only.partition(":") for only in chosen.only)]
    venv = None if chosen.no_litellm else litellm_venv(chosen.litellm_venv)
    good = [compare(*case, venv, chosen.patience) for case in wanted or CASES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
