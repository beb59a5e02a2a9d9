"""What a model call costs beside what the client's own library takes: processor time, in process and over a socket.

Agents over AsyncOpenAI play conversations of 5 calls, some at once, whole replies. `null` answers each call with the
same bytes: in process a transport that holds them, over the socket another process that writes them as soon as a
request is there. What a call takes then in this process is the SDK's. `ours` is a gateway of this process over a
scripted engine that takes no time: its threads count, the socket's work on both sides too. The difference is what ajet
takes for a call: HTTP, checks, the prompt by the chat template and in tokens, capture, the reply. Both are played in
turns, so that a busy machine is busy for both, and the median of the turns' differences is taken. Limit: 0.6 ms.

    python benchmarks/bench_call.py [--conversations N] [--turns N] [--profile FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
from ratios import kept

CALLS, AT_ONCE = 5, 16
LIMIT = 0.6
REPLY = "The next step is to add the two numbers and to carry one."
SYSTEM = "You solve sums step by step and give the answer in a box. " * 3
MODEL = "ajet"
WHOLE = json.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": REPLY, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 14, "total_tokens": 114},
    },
    separators=(",", ":"),
).encode()


class Null(httpx.AsyncBaseTransport):
    """Answers at once, in process."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return httpx.Response(200, headers={"content-type": "application/json"}, content=WHOLE, request=request)


class NullServer(asyncio.Protocol):
    """Answers a request as soon as it is there: nothing of it is read but where it ends."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._held = transport, b""

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, found, body = self._held.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self._held = b""
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(WHOLE)}\r\n\r\n".encode()
            self._transport.write(head + WHOLE)


def serve_null() -> None:
    """The other process: prints its port, serves until its standard input ends."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(NullServer, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.read)
        server.close()

    asyncio.run(serve())


@contextmanager
def null_server() -> Iterator[str]:
    """Its base URL."""
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()


def a_gateway() -> Any:
    """Over a scripted engine, with the template and the tokeniser of the model that ajet ships."""
    from transformers import AutoTokenizer

    from ajet.engine.embedded import embedded_folder
    from ajet.engine.scripted import ScriptedEngine
    from ajet.gateway import Gateway
    from ajet.tokens import Renderer

    words = Renderer(AutoTokenizer.from_pretrained(embedded_folder("tiny-tools", lambda *_: None)))
    ids = [*words.encode(REPLY).tolist(), words.end_ids[0]]
    engine = ScriptedEngine(lambda _: ids)
    return Gateway(engine, words, max_model_len=18000, max_response_tokens=4096).start()


async def talk(number: int, base_url: str, key: str, transport: httpx.AsyncBaseTransport | None) -> None:
    """One conversation, its client its own, as an episode's is."""
    from openai import AsyncOpenAI

    http: Any = httpx.AsyncClient(transport=transport, verify=False)  # no certificates are read for each
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"What is {number} + {number}?"},
    ]
    async with AsyncOpenAI(base_url=base_url, api_key=key, http_client=http) as client:
        for turn in range(CALLS):
            reply = await client.chat.completions.create(model=MODEL, messages=messages)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
            messages.append({"role": "user", "content": f"Go on with step {turn + 1}."})


class Side:
    """One of the four: what is asked, and how."""

    def __init__(self, gateway: Any, base_url: str, *, in_process: bool) -> None:
        self._gateway, self._base_url, self._in_process = gateway, base_url, in_process
        self._number = 0

    def play(self, conversations: int) -> float:
        """Seconds of processor time a call, of all threads of this process."""

        async def some(numbers: Iterator[int]) -> None:
            for number in numbers:
                await self._one(number)

        async def everything() -> None:
            numbers = iter(range(self._number, self._number + conversations))
            await asyncio.gather(*(some(numbers) for _ in range(AT_ONCE)))

        before = time.process_time()
        asyncio.run(everything())
        self._number += conversations
        return (time.process_time() - before) / (conversations * CALLS)

    async def _one(self, number: int) -> None:
        from ajet.engine.contract import Sampling

        if self._gateway is None:
            await talk(number, self._base_url, "k", Null() if self._in_process else None)
            return
        session = self._gateway.open(str(number), key=(0, number, 0), sampling=Sampling(64), trainable=None)
        endpoint = session("agent", "agent", None)
        await talk(number, endpoint.base_url, endpoint.api_key, endpoint.transport() if self._in_process else None)
        calls = session.close().calls
        assert [call.parent for call in calls] == [None, *range(CALLS - 1)], "each call extends the one before"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the limits are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=100, help="a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--profile", type=Path, help="write a cProfile of the gateway's thread, in process")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        serve_null()
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from ajet.rollout.runtime import reduce_collections

    gateway = a_gateway()
    good = True
    with null_server() as null_url, reduce_collections():  # as in a run
        if chosen.profile:
            profiled(gateway, chosen.profile, chosen.conversations)
            gateway.close()
            return 0
        for name, in_process in (("in process", True), ("over the socket", False)):
            null = Side(None, null_url, in_process=in_process)
            ours = Side(gateway, gateway.base_url, in_process=in_process)
            for side in (null, ours):
                side.play(AT_ONCE)
            turns = [(null.play(chosen.conversations), ours.play(chosen.conversations)) for _ in range(chosen.turns)]
            sdk = statistics.median(before for before, _ in turns) * 1e3
            added = statistics.median(after - before for before, after in turns) * 1e3
            spread = sorted((after - before) * 1e3 for before, after in turns)
            print(
                f"{name}: the SDK takes {sdk:.2f} ms a call, ajet {added:.2f} ms "
                f"({spread[0]:.2f} to {spread[-1]:.2f} in {len(turns)} turns; limit {LIMIT})",
                flush=True,
            )
            good = kept(f"ms of processor time a call, {name}", added, at_most=LIMIT) and good
    gateway.close()
    return 0 if good else 1


def profiled(gateway: Any, file: Path, conversations: int) -> None:
    """What the gateway's thread does meanwhile, by its own clock."""
    import cProfile

    profile = cProfile.Profile(time.thread_time)
    side = Side(gateway, gateway.base_url, in_process=True)
    side.play(conversations)
    gateway.on_loop(profile.enable)
    side.play(conversations)
    gateway.on_loop(profile.disable)
    profile.dump_stats(file)


if __name__ == "__main__":
    sys.exit(main())
