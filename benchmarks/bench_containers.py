"""The start of a task's container against the engine's own `run` of the same image: at most 1.3 times.

A start is from nothing to a container whose gateway port listens. Both are taken in turns, and the ratio is that of the
medians. With `--together N` it starts N containers at once and measures a busy loop of requests to a local server
meanwhile. With `--episodes N` it opens, uses and removes N containers one after the other and counts what is left.
Exits 1 above the limit, or if anything is left.

    python benchmarks/bench_containers.py IMAGE [--runs 15] [--together 50] [--episodes 200]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ratios import kept as held

from ajet_containers.container import build_limit_args
from ajet_containers.living import FileBundle
from ajet_containers.places import ContainerSpec, open_container, start_container
from ajet_containers.settings import ContainerLimits

START = 1.3
WAIT = ["sh", "-c", "sleep 1000"]


def time_start(spec: ContainerSpec) -> float:
    """Return the seconds from nothing to a container with a listening port."""
    began = time.perf_counter()
    container = start_container(spec)
    with container.listen(8080):
        seconds = time.perf_counter() - began
    container.close()
    return seconds


def time_engine(spec: ContainerSpec) -> float:
    """Return the seconds of the engine's own `run` of a container in the background."""
    name = f"bench-{secrets.token_hex(4)}"
    limits = build_limit_args(spec.limits)
    words = [spec.engine, "run", "--detach", "--network", "none", "--name", name, *limits, str(spec.image), *WAIT]
    began = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    subprocess.run([spec.engine, "rm", "--force", "--time", "0", name], check=True, capture_output=True)
    return seconds


async def play(spec: ContainerSpec) -> None:
    """Use a container as an episode does: files in, a command, a file out."""
    async with open_container(spec) as container:
        bundle = FileBundle()
        bundle.add_file("/tests/test.sh", b"echo 1 > /reward.txt", 0o755)
        await asyncio.to_thread(container.put, bundle)
        ended = await container.run(["sh", "/tests/test.sh"], environment={"KEY": "secret"})
        assert ended.code == 0, ended.stderr
        assert await asyncio.to_thread(container.get, "/reward.txt", 10) == b"1\n"


async def start_together(spec: ContainerSpec, number: int) -> tuple[float, list[float]]:
    """Return the seconds of `number` episodes at once, and the seconds of requests to a server of this process."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port, took = server.sockets[0].getsockname()[1], []

    async def request() -> None:
        while True:
            began = time.perf_counter()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"request")
            await reader.read(100)
            writer.close()
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)

    requests = asyncio.ensure_future(request())
    began = time.perf_counter()
    with ThreadPoolExecutor(number) as threads:  # each attempt of a run has a thread and a loop
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(threads, asyncio.run, play(spec)) for _ in range(number)))
    seconds = time.perf_counter() - began
    requests.cancel()
    return seconds, sorted(took)


def count_left(engine: str) -> dict[str, int]:
    """Return the numbers of what an episode could leave on this machine."""
    names = subprocess.run([engine, "ps", "--all", "--quiet"], check=True, capture_output=True).stdout.split()
    return {
        "containers": len(names),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "folders": len(list(Path(tempfile.gettempdir()).glob("ajet-task-*"))),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "control groups": sum(1 for _ in Path("/sys/fs/cgroup").glob("**/libpod-*")),
        "children": len(Path("/proc/self/task", str(os.getpid()), "children").read_text().split()),
    }


def main() -> int:
    """Measure, print, and judge. The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("image", help="an image of this machine with `sh` and `sleep`")
    parser.add_argument("--engine", default="podman", choices=["podman", "docker"])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--together", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=0)
    given = parser.parse_args()
    spec = ContainerSpec(given.engine, ContainerLimits(memory_mb=256, processes=64), image=given.image)
    time_start(spec)
    pairs = [(time_start(spec), time_engine(spec)) for _ in range(given.runs)]
    ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
    good = held("a container's start to the engine's own run", ours / theirs, at_most=START)
    print(f"start: ours {ours:.3f} s, {given.engine} run {theirs:.3f} s, ratio {ours / theirs:.2f} (at most {START})")
    if given.together:
        seconds, took = asyncio.run(start_together(spec, given.together))
        print(
            f"{given.together} episodes at once: {seconds:.1f} s; a request meanwhile: median "
            f"{1000 * statistics.median(took):.1f} ms, 99 of 100 below {1000 * took[int(0.99 * len(took))]:.1f} ms"
        )
    if given.episodes:
        asyncio.run(play(spec))
        before, began = count_left(given.engine), time.perf_counter()
        for _ in range(given.episodes):
            asyncio.run(play(spec))
        each, after = (time.perf_counter() - began) / given.episodes, count_left(given.engine)
        print(f"{given.episodes} episodes: {each:.2f} s each; before {before}, after {after}")
        good = good and all(after[name] <= number for name, number in before.items())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
