"""A thousand samplers and a trainer on one real store: what it takes in, what waits, and where it ends.

Each sampler is a member with a store of its own (a connection to the file, or a client of the server) and does what
`ajet sample` does: asks for the policy and a position, puts the episodes of a group of 4 one by one (20 kB each),
closes it, renews its lease. Playing costs nothing here: `paced`, each of them ends an episode every `--pace` seconds,
whatever the store answers; `flat out`, as fast as it takes them. A trainer takes 32 groups a step, commits and forgets.
At the end every episode that was acknowledged is counted: those that a step used, and those that are still there.

    python benchmarks/simulate_samplers.py [--kinds sqlite mongodb] [--samplers 1000] [--seconds 40] [--pace 60]

Exit code 1 where one is lost or there twice.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))

from bench_store import address_of, content, of_20_kb  # noqa: E402

from ajet.store import Kept, Lease, Policy, SharedStore, open_shared  # noqa: E402
from tests.support.mongod import server_file  # noqa: E402

GROUP, BATCH, LEASE_S, PROCESSES = 4, 32, 120.0, 4
WHOLE = of_20_kb()
SIZE = len(content())
"""Bytes of it as the store has it."""


@dataclass(order=True)
class Sampler:
    """`due`: when its next episode ends, by the monotonic clock."""

    due: float
    store: SharedStore = field(compare=False)
    lease: Lease | None = field(default=None, compare=False)
    put: int = field(default=0, compare=False)
    begun: bool = field(default=False, compare=False)
    renewed: float = field(default=0.0, compare=False)


class Samplers:
    """Those of one process, one after the other; what each call took, and what was acknowledged."""

    def __init__(self, address: str, first: int, count: int) -> None:
        self.took: dict[str, list[float]] = defaultdict(list)
        self.told: list[str] = []
        self._draw = random.Random(first)
        self.late: list[float] = []
        self.all = [Sampler(0.0, open_shared(address, lease_seconds=LEASE_S)) for _ in range(count)]
        for number, one in enumerate(self.all, first):
            one.store.join("sampler", f"sampler {number}")

    def run(self, seconds: float, pace: float) -> None:
        """`pace` 0: flat out."""
        begun = time.monotonic()
        for one in self.all:
            one.due, one.renewed = begun + self._draw.random() * pace, begun
        heapq.heapify(self.all)
        while (now := time.monotonic()) - begun < seconds:
            one = self.all[0]
            if one.due > now:
                time.sleep(min(one.due - now, begun + seconds - now))
                continue
            self.late.append(now - one.due if pace else 0.0)
            self._end_one(one)
            heapq.heapreplace(self.all, replace(one, due=one.due + pace if pace else time.monotonic()))
        for one in self.all:  # as a sampler does that is told to end
            if one.lease is not None:
                one.store.give_back([one.lease])

    def _end_one(self, one: Sampler) -> None:
        if one.lease is None:
            self._timed("announced", one.store.announced)
            (one.lease,) = self._timed("lease", one.store.lease, 1)
            if not one.begun:  # they are not all at the beginning of a group
                one.begun, one.put = True, self._draw.randrange(GROUP)
        made = replace(WHOLE, uuid=uuid.uuid4().hex)
        self._timed("put", one.store.put, one.lease, Kept(made))
        self.told.append(made.uuid)
        one.put += 1
        if time.monotonic() - one.renewed > LEASE_S / 3:
            self._timed("renew", one.store.renew, [one.lease])
            one.renewed = time.monotonic()
        if one.put == GROUP:
            self._timed("close", one.store.close, one.lease)
            one.lease, one.put = None, 0

    def _timed(self, name: str, does: Any, *given: Any) -> Any:
        begun = time.perf_counter()
        found = does(*given)
        self.took[name].append(time.perf_counter() - begun)
        return found


class Trainer(threading.Thread):
    """Uses groups as they close, until it is told to stop and none is left."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.store = open_shared(address, rolls=True, run="simulated")
        self.store.announce(Policy("simulated", 0, "/weights"))
        self.used: Counter[str] = Counter()
        self.steps: list[float] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while True:
            begun = time.perf_counter()
            groups = self.store.closed(BATCH)
            if len(groups) < BATCH and not self.stop.is_set():
                time.sleep(0.05)
                continue
            if not groups:
                return
            step = len(self.steps) + 1
            self.store.use([lease.order for lease in groups], step)
            self.store.commit()
            self.store.announce(Policy("simulated", step, "/weights"))
            self.store.forget(step - 1)
            self.steps.append(time.perf_counter() - begun)
            self.used.update(kept.episode.uuid for lease in groups for kept in lease.attempts)


def spread(values: list[float]) -> str:
    """Median and 99th of 100, in milliseconds."""
    if len(values) < 2:
        return "–"
    cut = statistics.quantiles(values, n=100)
    return f"{1000 * statistics.median(values):.1f} / {1000 * cut[98]:.1f} ms"


def run_all(address: str, samplers: int, seconds: float, pace: float) -> Iterator[dict[str, Any]]:
    """What each process found."""
    share = samplers // PROCESSES
    command = [sys.executable, __file__, "--samplers", str(share), "--seconds", str(seconds), "--pace", str(pace)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    begun = [
        subprocess.Popen([*command, "--worker", address, str(at * share)], **pipes) for at in range(PROCESSES)
    ]  # fmt: skip
    for each in begun:
        assert each.stdout is not None and each.stdout.readline() == "ready\n"
    for each in begun:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in begun:
        yield json.loads(each.communicate()[0])


def connections(address: str) -> str:
    """How many a server of MongoDB has now."""
    if address.startswith("sqlite:"):
        return ""
    from pymongo import MongoClient

    with MongoClient(address) as client:
        told = client.admin.command("serverStatus")
        return f"; {told['connections']['current']} connections, {told['mem']['resident']} MB resident"


def constants(kind: str) -> None:
    """What an episode takes on the disk, and how often a server is asked for one group."""
    count, asked, unheard = 50, Counter[str](), Counter[str]()
    with address_of(kind) as (address, _):
        store = open_shared(address, rolls=True, run="simulated")
        doing = "open"
        if kind == "mongodb":
            from ajet_mongo.connection import MongoConnection

            plain = MongoConnection.run_operation

            def counted(self: Any, operation: Any, base: Any) -> Any:
                asked[doing] += 1
                unheard[doing] += base is self._unacknowledged
                return plain(self, operation, base)

            MongoConnection.run_operation = counted  # type: ignore[method-assign]
        for _ in range(count):
            doing = "lease"
            (lease,) = store.lease(1)
            doing = "put"
            store.put(lease, Kept(replace(WHOLE, uuid=uuid.uuid4().hex)))
            doing = "close"
            store.close(lease)
        if kind == "mongodb":
            from pymongo import MongoClient

            MongoConnection.run_operation = plain  # type: ignore[method-assign]
            with MongoClient(address) as client:
                told = client.get_default_database().command("dbStats")
            taken = f"{told['dataSize'] / count / 1000:.1f} kB of documents"
            taken += "; asked " + ", ".join(
                f"{asked[each] / count:.1f} times a {each}" for each in ("lease", "put", "close")
            )
            taken += f" (of a put's {unheard['put'] / count:.1f} are told, and no answer is waited for)"
        else:
            path = Path(address.removeprefix("sqlite:"))
            files = [path, path.with_name(f"{path.name}-wal")]
            store.disconnect()  # what is in the log goes to the file
            taken = f"{sum(each.stat().st_size for each in files if each.exists()) / count / 1000:.1f} kB of the file"
        print(f"{kind:8} an episode of {SIZE / 1000:.1f} kB takes {taken}", flush=True)


def simulate(kind: str, options: argparse.Namespace) -> int:
    """Both ways on one empty store each. Answers how many episodes are lost or there twice."""
    wrong = 0
    for name, pace in (("paced", options.pace), ("flat out", 0.0)):
        with address_of(kind) as (address, _):
            trainer = Trainer(address)
            trainer.start()
            found = list(run_all(address, options.samplers, options.seconds, pace))
            trainer.stop.set()
            trainer.join()
            held = open_shared(address, rolls=True, at=trainer.store.commit(), run="simulated")
            left = Counter(kept.episode.uuid for lease in held.lease_kept() for kept in lease.attempts)
            told = {uuid for each in found for uuid in each["told"]}
            took = {name: [x for each in found for x in each["took"].get(name, ())] for name in found[0]["took"]}
            episodes, late = len(told), [x for each in found for x in each["late"]]
            there = trainer.used + left
            lost, twice = len(told - there.keys()), sum(count > 1 for count in there.values())
            wrong += lost + twice
            rate = episodes / options.seconds
            print(
                f"{kind:8} {name:9} {rate:7.1f} episodes a second, {rate * SIZE / 1e6:.2f} MB a second; "
                f"processor of the samplers {sum(each['cpu'] for each in found) / episodes * 1000:.1f} ms an episode"
                f"{found[0]['connections']}"
            )
            print("    median / 99th: " + ", ".join(f"{each} {spread(values)}" for each, values in took.items()))
            print(
                f"    late (paced) {spread(late)}; the trainer: {len(trainer.steps)} steps of {BATCH} groups, "
                f"{spread(trainer.steps)} each; {episodes} acknowledged, {lost} lost, {twice} twice",
                flush=True,
            )
            held.disconnect()
            trainer.store.disconnect()
    return wrong


def worker(address: str, first: int, options: argparse.Namespace) -> None:
    samplers = Samplers(address, first, options.samplers)
    print("ready", flush=True)
    sys.stdin.readline()
    before = resource.getrusage(resource.RUSAGE_SELF)
    samplers.run(options.seconds, options.pace)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told = {"took": samplers.took, "told": samplers.told, "late": samplers.late, "cpu": cpu}
    print(json.dumps(told | {"connections": connections(address)}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["sqlite", "mongodb"])
    parser.add_argument("--samplers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--pace", type=float, default=60.0, help="seconds that a sampler takes for an episode")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker[0], int(options.worker[1]), options)
        return 0
    print(
        f"{options.samplers} samplers in {PROCESSES} processes, groups of {GROUP} episodes of {SIZE / 1000:.1f} kB; "
        f"{platform.machine()}, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}"
    )
    wrong = 0
    for kind in options.kinds:
        if kind == "mongodb" and server_file() is None:
            print("mongodb: no server is installed (make setup)")
            continue
        constants(kind)
        wrong += simulate(kind, options)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
