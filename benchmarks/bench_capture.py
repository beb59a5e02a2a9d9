"""What a session's capture keeps in memory: bytes a distinct token, and whether 10,000 episodes leave anything behind.

A token is distinct when it was sampled or newly rendered (a call's own suffix and reply); texts are counted apart, for
they are kept as the client sent them. `held` plays one long conversation of many calls beside many short ones and
weighs what the sessions hold: arrays and objects of their calls, entries and indexes, by walking them. `flat` plays
10,000 episodes of 5 calls one after the other, as a run does, and compares the process before and after.

Limits: at most 24 bytes a distinct token; flat: less than 1 MiB more after the last 8,000 episodes than before them.

    python benchmarks/bench_capture.py [--episodes N] [--calls N] [--tokens N]
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from direct_call import call_model
from ratios import kept

from ajet.engine.contract import Sampling
from ajet.engine.scripted import ScriptedEngine
from ajet.gateway import Gateway, Session
from tests.support.rollouts import renderer

BYTES_A_TOKEN = 24
FLAT = 1 << 20


def a_gateway(tokens: int) -> Gateway:
    """Over a scripted engine whose replies have about so many tokens."""
    words = renderer()
    engine = ScriptedEngine(lambda _: "x" * tokens, encode=words.encode, end_id=words.end_ids[0])
    return Gateway(engine, words, max_model_len=1 << 20, max_response_tokens=1 << 20).start()


async def play(gateway: Gateway, number: int, calls: int) -> Session:
    """One conversation."""
    session = gateway.open(f"episode-{number}", key=(0, number, 0), sampling=Sampling(1 << 20), trainable=None)
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"What is {number} + {number}? " * 8}]
    for turn in range(calls):
        message = await call_model(session, messages)
        messages = [*messages, message, {"role": "user", "content": f"Go on with step {turn + 1}, please. " * 4}]
    return session


def bench_held(gateway: Gateway, calls: int, tokens: int) -> float:
    """Bytes that sessions keep for each distinct token, without the texts."""

    async def everything() -> list[Session]:
        return [await play(gateway, number, calls) for number in range(8)]

    gateway.call(play(gateway, 0, calls)).result()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    sessions = gateway.call(everything()).result()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    distinct = texts = 0
    for session in sessions:
        recorder = session.recorder
        assert all(call.fork is None for call in recorder.capture.calls)
        distinct += sum(len(call.suffix_ids) + len(call.response_ids) for call in recorder.capture.calls)
        parts = [part for stored in recorder.stored for part in (stored.text, stored.reply_text)]
        parts += [message["content"] for message in recorder.capture.messages]
        texts += sum(sys.getsizeof(part) for part in {id(part): part for part in parts}.values())
    each = (grown - texts) / distinct
    print(f"held: {len(sessions)} sessions of {calls} calls, replies of {tokens} tokens: {distinct} distinct tokens")
    print(f"  {grown / 2**20:.1f} MiB, of which texts {texts / 2**20:.1f} MiB")
    print(f"  {each:.1f} bytes a distinct token, texts apart (limit {BYTES_A_TOKEN})")
    return each


def bench_flat(gateway: Gateway, episodes: int) -> int:
    """Bytes that are left behind by all but the first fifth of the episodes."""

    async def some(first: int, count: int) -> None:
        for number in range(first, first + count):
            session = await play(gateway, number, 5)
            session("default", "default", None)
            session.close()

    def now() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    warm = episodes // 5
    tracemalloc.start()
    gateway.call(some(0, warm)).result()
    before = now()
    gateway.call(some(warm, episodes - warm)).result()
    left = now() - before
    tracemalloc.stop()
    print(f"flat: {episodes} episodes of 5 calls, one after the other")
    print(f"  {left / 2**10:.0f} KiB more after the last {episodes - warm} than before them (limit {FLAT >> 10} KiB)")
    return left


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the limits are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=300)
    chosen = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    gateway = a_gateway(chosen.tokens)
    held = bench_held(gateway, chosen.calls, chosen.tokens)
    left = bench_flat(gateway, chosen.episodes)
    gateway.close()
    flat = kept("bytes left by later episodes", left, at_most=FLAT)
    return 0 if kept("bytes a distinct token", held, at_most=BYTES_A_TOKEN) and flat else 1


if __name__ == "__main__":
    sys.exit(main())
