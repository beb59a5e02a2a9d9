"""Audit and status over a million episodes; what the chain costs a step.

- `ajet status`, and `ajet audit --episode`, `--task` and `--step`, in a process that has done its imports, against
  reading the index (chain.jsonl) once, bare, in the same run. Limit: one second each. Beside it the same commands as a
  person gives them, by the clock and in processor time, start and imports included; and what `ajet --help` takes.
- The chain's part of a step: digests and the link of 256 episodes of 20 kB, against the writing of those episodes.

    python benchmarks/bench_audit.py [--episodes 1000000] [--repeat 5]

The chain, the rows of metrics and the status are those of all the episodes; of the episode files only those are made
that the questions lead to, as no other is opened for them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ratios import kept

from ajet.record.chain import FILE, Chain, LinkedLine, LinkedLines, linked_line
from ajet.record.episode_codec import encode
from ajet.record.episodes import EpisodeFiles
from ajet.record.live_status import read_live_status
from ajet.record.plain_json import dumps
from ajet.schema.episode import Outcome
from ajet_proof.auditing.audit import trace_episode, trace_step, trace_task
from tests.support.record_fixtures import episode

A_STEP, REPEATS, TASKS = 128, 8, 5000
LIMIT_S = 1.0


def uuid_of(number: int) -> str:
    """As ajet's are: 32 hexadecimal digits, alike in nothing."""
    return f"{(number * 0x9E3779B97F4A7C15F39CC0605CEDC835) % (1 << 128):032x}"


def record(folder: Path, episodes: int) -> int:
    """A run of so many episodes; answers its last step."""
    steps, wanted = episodes // A_STEP, set()
    (folder / "episodes").mkdir()
    chain, rows = Chain(folder), []
    step_task = [f"train-{(step * A_STEP // REPEATS) % TASKS}" for step in range(steps)]
    wanted = {steps - 1, steps // 2} | {step for step, task in enumerate(step_task) if task == "train-0"}
    for step in range(steps):
        numbers = range(step * A_STEP, (step + 1) * A_STEP)
        tasks = [f"train-{number // REPEATS % TASKS}" for number in numbers]
        if step in wanted:
            files = EpisodeFiles(folder / "episodes")
            files.chain = chain
            played = [
                episode(uuid_of(number), step=step, task=episode().task.model_copy(update={"task_id": task}))
                for number, task in zip(numbers, tasks, strict=True)
            ]
            files.write(step, "train", played, {each.uuid: Outcome(step, 0.5) for each in played})
        else:
            lines = [
                LinkedLine(uuid_of(number), task, 3500, "0" * 32, 275, "0" * 32)
                for number, task in zip(numbers, tasks, strict=True)
            ]
            chain.note_lines(LinkedLines(f"episodes/step-{step}.jsonl", 1, 0, 0, lines))
        times = {"seconds/step": 9.0, "seconds/rollout": 6.0, "seconds/update": 3.0}
        numbers_of_row = {f"train/number{each}": 0.125 * each for each in range(40)}
        row = json.dumps({"step": step, "time": 0.0, **times, **numbers_of_row, "tasks": [*range(16)], "discarded": []})
        rows.append(row)
        chain.note_row(row)
        chain.commit("step", step)
    (folder / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (folder / "status.json").write_text(json.dumps({"phase": "rollout", "step": steps}))
    return steps - 1


def seconds(work: Callable[[], object], repeat: int) -> float:
    """The median, of processor time: everything is in one thread, and the disk's pages are in memory."""
    took = []
    for _ in range(repeat):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return statistics.median(took)


def as_typed(*arguments: str) -> str:
    """What a command takes from its start to its end: the medians of three."""
    clock, processor = [], []
    for _ in range(3):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "ajet.cli.launcher", *arguments], check=True, stdout=subprocess.DEVNULL)
        clock.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return f"{statistics.median(clock):.2f} s by the clock, {statistics.median(processor):.2f} s of processor time"


def cost(folder: Path) -> tuple[float, float]:
    """Processor seconds of writing 256 episodes of about 20 kB, and of what the chain adds."""
    folder.mkdir()
    long = {"messages": [{"role": "user", "content": "word " * 3600}, {}, {}, {}]}
    played = [episode(uuid_of(number), **long) for number in range(256)]
    files = EpisodeFiles(folder / "episodes")
    began = time.process_time()
    files.write(1, "train", played)
    written = time.process_time() - began
    parts = [(one.uuid, dumps(row), zlib.compress(raw)) for one in played for row, raw in [encode(one)]]
    chain = Chain(folder)
    began = time.process_time()
    lines = [linked_line(uuid, "train-1", line, packed) for uuid, line, packed in parts]
    chain.note_lines(LinkedLines("episodes/step-1.jsonl", 1, 0, 0, lines))
    chain.commit("step", 1)
    return written, time.process_time() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    slow = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "run")
        folder.mkdir()
        last = record(folder, given.episodes)
        index = folder / FILE
        bare = seconds(index.read_bytes, given.repeat)
        size = index.stat().st_size
        told = f"the index has {size / 2**20:.0f} MiB, read in {bare:.3f} s"
        print(f"{given.episodes:,} episodes, {last + 1:,} steps; {told}")
        final = uuid_of((last + 1) * A_STEP - 1)
        middle = (last + 1) // 2
        commands: list[tuple[str, Callable[[], object], list[str]]] = [
            ("status", lambda: read_live_status(folder), []),
            ("audit --episode (the last)", lambda: trace_episode(folder, final), ["--episode", final]),
            ("audit --task", lambda: trace_task(folder, "train-0"), ["--task", "train-0"]),
            ("audit --step", lambda: trace_step(folder, middle), ["--step", str(middle)]),
        ]
        print(f"load {os.getloadavg()[0]:.1f}; ajet --help: {as_typed('--help')}")
        for name, work, flags in commands:
            took = seconds(work, given.repeat)
            quick = kept(f"seconds of {name}, {given.episodes:,} episodes", took, at_most=LIMIT_S)
            slow += not quick
            slowly = "" if quick else "  TOO SLOW"
            print(f"{name:<27} {took:.3f} s, {took / bare:.2f} of the bare read{slowly}")
            print(f"{'':<27} the command: {as_typed(name.split()[0], str(folder), *flags)}")
        written, added = cost(Path(temporary, "cost"))
        kept("the chain's part of a step against writing its episodes", added / written)
        print(f"the chain's part of a step  {added * 1000:.1f} ms, {added / written:.3f} of writing its episodes")
    return 1 if slow else 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
