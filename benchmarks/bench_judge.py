"""What judging costs beside what it stands on: by a model, verdicts a second with 64 at once against what its server
gives to a bare client, and the time of a verdict that was kept; by the scorer `math`, the time of a verdict against
math-verify called directly.

The server answers each request after a fixed time, in a process of its own; both ways send the same requests, 64 at
once, over connections that are kept. The pairs of answers are as models and data sets write them; those that no rule of
ajet's decides, and that a worker process therefore gives to math-verify, are counted by themselves, too. Both sides are
warm, and rounds are interleaved.

Limits: at least 0.9 of the bare client's rate; at most 1 ms for a verdict that was kept, at the median; at most 1.5
times math-verify's own time, of all pairs and of those that reach it.

    python benchmarks/bench_judge.py [--requests N] [--rounds N] [--latency SECONDS]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ratios import kept

AT_ONCE = 64
SERVER = """
import asyncio, json, sys
from aiohttp import web
TOLD = {"choices": [{"message": {"role": "assistant", "content": json.dumps({"reason": "so", "verdict": "correct"})}}]}
async def chat(request):
    await request.read()
    await asyncio.sleep(float(sys.argv[1]))
    return web.json_response(TOLD)
async def main():
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


PAIRS = (
    ("42", "42"), ("1,234", "1234"), ("0.5", "\\frac{1}{2}"), ("-7", "7"), ("18", "\\$18"), ("3.14", "\\frac{22}{7}"),
    ("50\\%", "0.5"), ("\\frac{3}{4}", "\\dfrac{3}{4}"), ("(1, 2)", "(1,2)"), ("12 \\text{ cm}", "12"),
    ("2\\sqrt{3}", "\\sqrt{12}"), ("x^2+2x+1", "(x+1)^2"), ("\\frac{\\pi}{4}", "\\pi/4"), ("2^{10}", "1024"),
    ("\\sin^2 x + \\cos^2 x", "1"), ("3x+2", "2+3x"), ("\\frac{1+\\sqrt{5}}{2}", "\\frac{\\sqrt{5}+1}{2}"),
    ("(x-1)(x+1)", "x^2-1"), ("\\log_2 8", "3"), ("[0, 1)", "[0,1)"), ("\\sqrt{8}", "2\\sqrt{3}"), ("a+b", "a-b"),
    ("\\frac{x}{x^2}", "\\frac{1}{x}"),
)  # fmt: skip
"""Answers and what they are compared with: numbers first, as in GSM8K, then expressions, as in MATH."""


def math_times(rounds: int) -> dict[str, tuple[float, float, int]]:
    """By kind of pairs: milliseconds of the scorer's verdict and of math-verify's own, the mean over the pairs of the
    fastest of the rounds, and how many pairs. math-verify has no time limits of its own here, which cost it more."""
    from math_verify import parse, verify

    from ajet.config import Experiment
    from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
    from ajet.task_judge import open_judge
    from ajet.task_judge.math_rules import AnswerComparer
    from ajet.task_judge.math_text import normalize_math

    judge = open_judge(Experiment.from_dict({"ajet": {"task_judge": {"scorer": "math"}}}, base=Path.cwd()))
    asked = [
        (
            WorkflowTask(task=Task(main_query="?", task_id=str(at), metadata={"answer": truth}), task_id=str(at)),
            WorkflowOutput(metadata={"final_answer": f"\\boxed{{{said}}}"}),
        )
        for at, (said, truth) in enumerate(PAIRS)
    ]
    reach: set[int] = set()

    def note(at: int) -> bool:
        reach.add(at)
        return False

    for at, pair in enumerate(PAIRS):
        AnswerComparer(lambda *_, at=at: note(at)).decide(*map(normalize_math, pair))

    async def judged(at: int) -> float:
        begun = time.perf_counter()
        await judge.verdict(*asked[at])
        return time.perf_counter() - begun

    def bare(at: int) -> float:
        said, truth = PAIRS[at]
        begun = time.perf_counter()
        known, given = (parse(f"${text}$", parsing_timeout=None) for text in (truth, said))
        verify(known, given, timeout_seconds=None)
        return time.perf_counter() - begun

    async def measure() -> list[tuple[list[float], list[float]]]:
        for at in range(len(PAIRS)):  # warm: the worker, both parsers
            await judged(at), bare(at)
        return [
            ([await judged(at) for at in range(len(PAIRS))], [bare(at) for at in range(len(PAIRS))])
            for _ in range(rounds)
        ]

    found = asyncio.run(measure())

    def fastest(side: int, which: set[int]) -> float:
        return 1000 * statistics.fmean(min(both[side][at] for both in found) for at in which)

    return {
        name: (fastest(0, which), fastest(1, which), len(which))
        for name, which in (("all pairs", {*range(len(PAIRS))}), ("those that reach math-verify", reach))
    }


def judge_at(url: str, folder: Path, *, cache: bool) -> Any:
    """As a run makes it."""
    from ajet.config import Experiment
    from ajet_judges.model_judge import ModelJudge

    tree = {"judges": [{"model": "m", "base_url": url}], "model_judge": {"max_parallel": AT_ONCE, "cache": cache}}
    return ModelJudge.of_experiment(Experiment.from_dict({"ajet": {"task_judge": tree}}, base=folder, exp_dir=folder))


async def rate(count: int, one: Callable[[int], Awaitable[Any]]) -> float:
    """Calls a second, `AT_ONCE` at a time."""
    free = asyncio.Semaphore(AT_ONCE)

    async def held(number: int) -> None:
        async with free:
            await one(number)

    begun = time.perf_counter()
    await asyncio.gather(*(held(number) for number in range(count)))
    return count / (time.perf_counter() - begun)


async def measured(url: str, folder: Path, requests: int, rounds: int) -> tuple[float, float, float]:
    """The bare client's rate, the judge's, and milliseconds of a kept verdict."""
    import aiohttp

    judge, keeping = judge_at(url, folder, cache=False), judge_at(url, folder, cache=True)
    seen: list[bytes] = []

    async def judged(number: int) -> None:
        assert (await judge.judge("What is 2 + 2?", f"It is {number}.", "4")).reward == 1.0

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * 1500}]}

        async def bare(_: int) -> None:
            async with session.post(f"{url}/chat/completions", json=body) as reply:
                seen.append(await reply.read())

        await rate(AT_ONCE, bare)
        await rate(AT_ONCE, judged)
        rates: dict[str, list[float]] = {"bare": [], "judge": []}
        for _ in range(rounds):
            rates["bare"].append(await rate(requests, bare))
            rates["judge"].append(await rate(requests, judged))
    await keeping.judge("q", "kept", "r")
    times = []
    for _ in range(500):
        begun = time.perf_counter()
        verdict = await keeping.judge("q", "kept", "r")
        times.append(time.perf_counter() - begun)
        assert verdict.metrics["cached"] == 1.0
    assert json.loads(seen[0])
    return statistics.median(rates["bare"]), statistics.median(rates["judge"]), 1000 * statistics.median(times)


def main(requests: int, rounds: int, latency: float) -> int:
    """Print both, and 1 where a limit is not kept."""
    from ajet.rollout.runtime import reduce_collections

    server = subprocess.Popen([sys.executable, "-c", SERVER, str(latency)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        # A collection of everything takes longer than a verdict, and would fall on either side: rare, as in a play.
        with tempfile.TemporaryDirectory() as folder, reduce_collections():
            bare, judged, again = asyncio.run(measured(url, Path(folder), requests, rounds))
    finally:
        server.kill()
        server.wait()
    limit = AT_ONCE / latency
    print(
        f"{AT_ONCE} at once, {latency:g} s each, at most {limit:.0f}/s: bare client {bare:.0f}/s, judge {judged:.0f}/s"
    )
    print(f"judge against the bare client: {judged / bare:.2f} (goal 0.9); a kept verdict: {again:.2f} ms (goal 1)")
    worst = 0.0
    for name, (scorer, own, count) in math_times(20).items():
        worst = max(worst, scorer / own)
        print(
            f"math, {name} ({count}): scorer {scorer:.2f} ms, math-verify itself {own:.2f} ms: "
            f"{scorer / own:.2f} times (goal 1.5)"
        )
    limits = [
        kept("verdicts a second against the bare client", judged / bare, at_least=0.9),
        kept("ms of a kept verdict", again, at_most=1.0),
        kept("math against math-verify", worst, at_most=1.5),
    ]
    return int(not all(limits))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds of a reply")
    told = parser.parse_args()
    sys.exit(main(told.requests, told.rounds, told.latency))
