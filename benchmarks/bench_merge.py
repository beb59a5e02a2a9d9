"""Merge: context_tracker against one numpy comparison pass over the same tokens.

Processor time of one thread, the fastest of several runs. The tokens are those of all calls, prompt and reply, as a
client replays them. The pass is `numpy.array_equal` of each
call's ids with a copy of them: what it costs to look at every token once, call by call. Limits: at most 5 times that
pass, and time that grows with at most the power 1.1 of the tokens (of the pass, where that outgrows the caches and
with it the tokens).

    conversations  calls of 200 to 3,000 tokens, 15 to a conversation, each replaying the one before; nobody says which
                   continues which: the tokens alone have to tell
    linked         the same as the gateway hands them over: with parents, so that only new tokens are looked at
    long           one conversation of up to 800 calls, 200 new tokens each, unlinked (up to 64 million tokens)
    sliding        one conversation whose every call drops the oldest message: no call extends another. Beside the
                   pass, a merge by text: each call's text compared with that of the open timelines, and arrays made
                   for those that are left. Limit: at most the time of that
    stripped       one conversation whose every reply is left out of the next prompt: all fork, and nothing is merged

    python benchmarks/bench_merge.py [--repeats N] [--scenes NAME ...]
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from ratios import kept

from ajet.context_tracker import timelines
from ajet.schema.call import Call, Ids, VersionRun

CALLS = (50, 100, 200, 400, 800)
RATIO_LIMIT, POWER_LIMIT, TEXT_LIMIT = 5.0, 1.1, 1.0
VOCABULARY = 50_000
SCENES = ("conversations", "linked", "long", "sliding", "stripped")


def a_call(index: int, parent: int | None, prefix: int, suffix: Ids, response: Ids) -> Call:
    """A trained call."""
    drawn = np.full(response.size, -0.5, np.float32)
    versions = (VersionRun(0, 0, 0),)
    return Call(index, "a", "a", True, parent, prefix, suffix, response, drawn, drawn, versions, "stop", (), None, None)


def conversations(count: int, lengths: Ids, *, linked: bool) -> tuple[list[Call], list[Ids]]:
    """Calls whose prompt + response have `lengths`, over and over, each conversation extending itself."""
    rng = np.random.default_rng(count)
    calls: list[Call] = []
    fulls: list[Ids] = []
    full = np.empty(0, np.int32)
    for index in range(count):
        turn = index % lengths.size
        if not turn:
            full = np.empty(0, np.int32)
        new = rng.integers(0, VOCABULARY, int(lengths[turn]) - full.size).astype(np.int32)
        cut = new.size * 2 // 3
        if linked:
            calls.append(a_call(index, index - 1 if turn else None, full.size, new[:cut], new[cut:]))
        else:
            calls.append(a_call(index, None, 0, np.concatenate([full, new[:cut]]), new[cut:].copy()))
        full = np.concatenate([full, new])
        fulls.append(full)
    return calls, fulls


WINDOW, MESSAGE = 40, 200
"""Messages that a sliding window holds, and tokens of each."""


def sliding(count: int) -> tuple[list[Call], list[Ids]]:
    """As the gateway hands them over: a system prompt and the template's first tokens are shared with the parent."""
    rng = np.random.default_rng(count)
    head, begins = rng.integers(0, VOCABULARY, 100).astype(np.int32), np.array([1, 2, 3], np.int32)
    messages = rng.integers(0, VOCABULARY, (count + WINDOW, MESSAGE)).astype(np.int32)
    messages[:, : begins.size] = begins
    calls, fulls = [], []
    shared = head.size + begins.size
    for index in range(count):
        full = np.concatenate([head, *messages[index : index + WINDOW + 1]])
        prompt, response = full[: full.size - MESSAGE + begins.size], full[full.size - MESSAGE + begins.size :]
        prefix = shared if index else 0
        calls.append(a_call(index, index - 1 if index else None, prefix, prompt[prefix:].copy(), response.copy()))
        fulls.append(full)
    return calls, fulls


def by_text(calls: list[Call], fulls: list[Ids]) -> Callable[[], object]:
    """A merge that compares what was said, each message four letters a token: a call whose text begins with that of an
    open timeline takes its place; the ids of those that are left are put together, with masks and logprobs."""
    letters = [np.char.mod("%04x", full).tolist() for full in fulls]
    said = ["".join(each) for each in letters]
    parts = [[full[at : at + MESSAGE] for at in range(0, full.size, MESSAGE)] for full in fulls]

    def merge() -> list[tuple[Any, ...]]:
        held: list[int] = []
        for index, text in enumerate(said):
            held = [other for other in held if not text.startswith(said[other])] + [index]
        made = []
        for index in held:
            ids, reply = np.concatenate(parts[index]), calls[index].response_ids.size
            mask, drawn = np.zeros(ids.size, np.bool_), np.zeros(ids.size, np.float32)
            unit, versions = np.zeros(ids.size, np.float32), np.full(ids.size, -1, np.int32)
            mask[-reply:], drawn[-reply:], versions[-reply:] = True, calls[index].logprobs, 0
            unit[-reply:] = calls[index].logprobs_unit
            made.append((ids, mask, drawn, unit, versions))
        return made

    return merge


def stripped(count: int) -> tuple[list[Call], list[Ids]]:
    """Prompts of 200 to 3,000 tokens that extend each other; replies that the next prompt does not hold."""
    rng = np.random.default_rng(count)
    history = rng.integers(0, VOCABULARY, 3000).astype(np.int32)
    calls, fulls = [], []
    for index, size in enumerate(np.linspace(200, 2900, count).astype(int)):
        response = rng.integers(0, VOCABULARY, 100).astype(np.int32)
        calls.append(a_call(index, None, 0, history[:size].copy(), response))
        fulls.append(np.concatenate([history[:size], response]))
    return calls, fulls


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of processor time of the fastest run: what else runs on the machine is not counted."""
    fastest = math.inf
    for _ in range(repeats):
        start = time.thread_time()
        work()
        fastest = min(fastest, time.thread_time() - start)
    return fastest


def main() -> None:
    """Print the ratios and the powers; exit 1 when a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=SCENES, help="only these of the above")
    chosen = parser.parse_args()
    repeats = chosen.repeats
    fifteen = np.linspace(200, 3000, 15).astype(np.int32)
    steady = np.arange(200, 200 * (max(CALLS) + 1), 200, dtype=np.int32)
    scenes: dict[str, Callable[[int], tuple[list[Call], list[Ids]]]] = {
        "conversations": lambda count: conversations(count, fifteen, linked=False),
        "linked": lambda count: conversations(count, fifteen, linked=True),
        "long": lambda count: conversations(count, steady, linked=False),
        "sliding": sliding,
        "stripped": stripped,
    }
    print(f"{'':14} {'calls':>6} {'tokens':>11} {'timelines':>9} {'merge':>10} {'pass':>10} {'ratio':>6}")
    ratios, powers, texts = list[float](), list[float](), list[float]()
    for name in chosen.scenes:
        make, points = scenes[name], []
        for count in CALLS:
            calls, fulls = make(count)
            copies = [ids.copy() for ids in fulls]
            tokens = sum(ids.size for ids in fulls)
            rounds = max(3, repeats * 2_000_000 // max(tokens, 2_000_000))
            merge = best(lambda: timelines(calls), rounds)  # noqa: B023
            once = best(lambda: [np.array_equal(a, b) for a, b in zip(fulls, copies, strict=True)], rounds)  # noqa: B023
            found, untrained = timelines(calls)
            sampled = sum(call.response_ids.size for call in calls)
            assert sampled == sum(timeline.sampled for timeline in found) and not untrained
            points.append((math.log(tokens), math.log(merge), math.log(once)))
            if name == "sliding":
                texts.append(merge / best(by_text(calls, fulls), rounds))
            ratios.append(merge / once)
            print(
                f"{name:14} {count:6} {tokens:11,} {len(found):9} {merge * 1e3:7.2f} ms {once * 1e3:7.2f} ms "
                f"{merge / once:6.2f}"
            )
        at, merges, passes = zip(*points, strict=True)
        power, own = float(np.polyfit(at, merges, 1)[0]), float(np.polyfit(at, passes, 1)[0])
        powers.append(power / max(own, 1.0))
        print(f"{name:14} time grows as tokens ^ {power:.2f}, the pass's as tokens ^ {own:.2f}")
    print(f"worst ratio {max(ratios):.2f} (limit {RATIO_LIMIT}), power {max(powers):.2f} (limit {POWER_LIMIT})")
    limits = [
        kept("against a numpy pass", max(ratios), at_most=RATIO_LIMIT),
        kept("power of the tokens", max(powers), at_most=POWER_LIMIT),
    ]
    if texts:
        print(f"sliding, against a merge by text: {max(texts):.2f} at worst (limit {TEXT_LIMIT})")
        limits.append(kept("sliding, against a merge by text", max(texts), at_most=TEXT_LIMIT))
    sys.exit(not all(limits))


if __name__ == "__main__":
    main()
