"""What must not get slower: seven workloads, each played turn by turn, so that two versions can take turns.

    call     whole replies of the gateway over a scripted engine, 5 calls a conversation, one after the other
    stream   streamed replies of the same gateway, 16 clients at once
    episode  single episodes of a debug run: agent, gateway, engine, record
    step     training steps of a local run: 16 episodes, an update, a checkpoint
    merge    calls of 15-turn conversations merged into timelines
    help     `ajet --help`
    resume   from the command to the first episode of a training run that was killed behind a checkpoint

`make bench ARGS="--commit HEAD~1"` starts this module once a version (scripts/compare_commits.py). It prints a line
when it is ready, plays a turn for each line on its standard input, and prints what the turn took: seconds by the clock
and of processor time. It needs psutil, the public commands, and for call, stream and merge the parts that
bench_gateway.py and bench_merge.py use: whoever moves those parts mends those files, and this one stays.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

GATED = Path(__file__).parent / "gated"
START_TIMEOUT = 300.0
"""Seconds after which a run that has not begun an episode is an error: a busy machine starts one in a minute."""


class Workload(ABC):
    """One of the seven. It is a context manager: what it started has ended when the block is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open = ExitStack()

    def start(self) -> None:  # noqa: B027
        """Prepare what no turn should count."""

    @abstractmethod
    def play_turn(self) -> None:
        """Do the work that is measured."""

    @abstractmethod
    def read_processor_time(self) -> float:
        """Return the processor seconds used so far by all processes that do the work."""

    def measure_turn(self) -> tuple[float, float]:
        """Return the seconds of one turn, by the clock and of processor time."""
        used, began = self.read_processor_time(), time.perf_counter()
        self.play_turn()
        return time.perf_counter() - began, self.read_processor_time() - used


class GatewayWorkload(Workload):
    """The gateway of bench_gateway.py in a process of its own."""

    def start(self) -> None:
        from bench_gateway import server

        self.process, printed = self.open.enter_context(server("gateway", 0.0, 1000))
        self.port: int = printed["port"]
        self.places: list[dict[str, Any]] = printed["places"]

    def read_processor_time(self) -> float:
        return read_family_time(self.process.pid)


class CallWorkload(GatewayWorkload):
    """Calls one after the other on one connection: what waits in one of them is not hidden by another."""

    CONVERSATIONS, CALLS = 20, 5

    def start(self) -> None:
        super().start()
        self.number = 0

    def play_turn(self) -> None:
        from stream_clients import SYSTEM, TOKENS

        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        for _ in range(self.CONVERSATIONS):
            self.number += 1
            place = self.places[self.number % len(self.places)]
            headers = {"content-type": "application/json", "authorization": f"Bearer {place['key']}"}
            messages = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"What is {self.number} + {self.number * 7}?"},
            ]
            for turn in range(self.CALLS):
                body = json.dumps({"model": "scripted", "max_tokens": TOKENS, "messages": messages})
                connection.request("POST", place["path"], body, headers)
                reply = json.loads(connection.getresponse().read())
                messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
                messages.append({"role": "user", "content": f"Go on with step {turn + 1}."})
        connection.close()


class StreamWorkload(GatewayWorkload):
    """Streams of 32 tokens over 16 connections."""

    STREAMS, CLIENTS = 200, 16

    def play_turn(self) -> None:
        from stream_clients import drive

        load = asyncio.run(drive(self.port, self.places[: self.CLIENTS], self.STREAMS, 120.0))
        if load.failed or load.open:
            raise SystemExit(f"{load.failed} streams failed, {load.open} did not end")


class GatedWorkload(Workload):
    """An `ajet` run whose agent (gated/agent.py) waits before each turn."""

    BACKBONE = "debug"
    EPISODES = 5

    def start(self) -> None:
        self.listen()
        self.process, self.connection = self.open.enter_context(self.start_run())

    def listen(self) -> None:
        """Make the run's project and the socket that its agent reports to."""
        shutil.copytree(GATED, self.folder / "project")
        self.listener = self.open.enter_context(socket.socket(socket.AF_UNIX))
        self.listener.bind(str(self.folder / "gate"))
        self.listener.listen()

    @contextmanager
    def start_run(self) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
        """Yield the run and its agent's connection when the first episode has begun; kill the run in the end."""
        command = [sys.executable, "-m", "ajet", "--conf", "run.yaml", "--backbone", self.BACKBONE, "--no-rehearsal"]
        env = {**os.environ, "GATE_SOCKET": str(self.folder / "gate"), "GATE_EPISODES": str(self.EPISODES)}
        log = self.folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.folder / "project", env=env, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            self.listener.settimeout(0.5)
            connection = wait_for(self.listener, process, log)
            with connection:
                connection.settimeout(START_TIMEOUT)
                self.wait_for_turn(connection)
                yield process, connection
        finally:
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait()
            for child in family:
                child.kill() if child.is_running() else None

    def wait_for_turn(self, connection: socket.socket) -> None:
        """Return when the agent waits at its gate."""
        if connection.recv(1) != b"r":
            raise SystemExit(f"the run ended before its turn:\n{(self.folder / 'log').read_text()[-3000:]}")

    def play_turn(self) -> None:
        self.connection.sendall(b"g")
        self.wait_for_turn(self.connection)

    def read_processor_time(self) -> float:
        return read_family_time(self.process.pid)


class EpisodeWorkload(GatedWorkload):
    """Single episodes of three calls, one at a time."""


class StepWorkload(GatedWorkload):
    """Steps of 4 tasks with 4 attempts each."""

    BACKBONE, EPISODES = "local", 16


class ResumeWorkload(GatedWorkload):
    """Starts of a training run that was killed at the beginning of its third step."""

    BACKBONE, EPISODES = "local", 16

    def start(self) -> None:
        self.listen()
        with self.start_run() as (self.process, self.connection):
            for _ in range(2):
                super().play_turn()
        if not list(self.folder.glob("project/launcher_record/*/checkpoints/step-*")):
            raise SystemExit("no checkpoint to resume from")

    def measure_turn(self) -> tuple[float, float]:
        began = time.perf_counter()
        with self.start_run() as (self.process, _):
            took = time.perf_counter() - began
            used = self.read_processor_time()
        if "resumed after step" not in (self.folder / "log").read_text():
            raise SystemExit(f"it did not resume:\n{(self.folder / 'log').read_text()[-3000:]}")
        return took, used

    def play_turn(self) -> None:
        raise NotImplementedError


class MergeWorkload(Workload):
    """Merging as bench_merge.py does it: unlinked, linked, and a window that slides."""

    def start(self) -> None:
        import numpy as np
        from bench_merge import conversations, sliding, timelines

        lengths = np.linspace(200, 3000, 15).astype(np.int32)
        self.scenes = [
            conversations(400, lengths, linked=False)[0], conversations(800, lengths, linked=True)[0], sliding(400)[0],
        ]  # fmt: skip
        self.merge: Callable[[Any], object] = timelines

    def play_turn(self) -> None:
        for calls in self.scenes:
            self.merge(calls)

    def read_processor_time(self) -> float:
        return time.process_time()


class HelpWorkload(Workload):
    """`ajet --help` in a fresh process."""

    def play_turn(self) -> None:
        subprocess.run([sys.executable, "-m", "ajet", "--help"], check=True, stdout=subprocess.DEVNULL)

    def read_processor_time(self) -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


WORKLOADS: dict[str, type[Workload]] = {
    "call": CallWorkload,
    "stream": StreamWorkload,
    "episode": EpisodeWorkload,
    "step": StepWorkload,
    "merge": MergeWorkload,
    "help": HelpWorkload,
    "resume": ResumeWorkload,
}


def wait_for(listener: socket.socket, process: subprocess.Popen[bytes], log: Path) -> socket.socket:
    """Return the agent's connection. Exits with the run's last lines where the run ends before."""
    until = time.monotonic() + START_TIMEOUT
    while time.monotonic() < until:
        try:
            return listener.accept()[0]
        except TimeoutError:
            if process.poll() is not None:
                break
    raise SystemExit(f"the run began no episode:\n{log.read_text()[-3000:]}")


def main() -> int:
    """Play one workload by the lines on the standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=WORKLOADS)
    parser.add_argument("folder", type=Path, help="an empty folder")
    options = parser.parse_args()
    workload = WORKLOADS[options.name](options.folder)
    with workload.open:
        workload.start()
        workload.measure_turn()
        print(json.dumps("ready"), flush=True)
        for _ in sys.stdin:
            print(json.dumps(workload.measure_turn()), flush=True)
    return 0


def read_family_time(pid: int) -> float:
    """Return the processor seconds of a process and its children, by Linux's clocks of other processes.

    /proc counts in hundredths of a second, which is too coarse for turns as short as these.
    """
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    seconds = 0.0
    for each in family:
        with suppress(OSError):  # it ended meanwhile
            seconds += time.clock_gettime((~each.pid << 3) | 2)  # as clock_getcpuclockid() makes it
    return seconds


if __name__ == "__main__":
    sys.exit(main())
