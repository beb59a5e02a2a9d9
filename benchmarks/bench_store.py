"""What a shared store costs beside its bare database: claim, put and hand-over of episodes of 20 kB.

`raw` is the least queue of leases that the same client can make of the database, as durable and with the same bytes:
claim a waiting row or document (its fence and the end of its lease, one update), put an end of it (one insert, found by
its position; refused where the lease is another's), hand it over (one update under the fence, which in MongoDB, where
no insert can ask for the lease, names the end). `ajet` does it by `lease`, `put` and `close`, with one episode a
position. One process, then four on one store. Each number is operations a second over all of them; both take turns.
Beside it the processor time of all three, of the processes and of the server: it hardly depends on the disk.

Limit: at least half of raw, over the three together.

    python benchmarks/bench_store.py [--kinds sqlite mongodb] [--rounds N] [--processes 1 4]
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402
from ratios import kept  # noqa: E402

from ajet.record.episode_codec import encode  # noqa: E402
from ajet.record.plain_json import dumps  # noqa: E402
from ajet.schema.episode import Episode  # noqa: E402
from ajet.store import Kept, open_shared  # noqa: E402
from tests.support.mongod import Mongod, server_file  # noqa: E402
from tests.support.record_fixtures import call, episode  # noqa: E402

DOING = ("claim", "put", "ack")
LIMIT = 0.5
Seconds = dict[str, float]


def of_20_kb() -> Episode:
    """Some 1,200 tokens and 6 kB of text."""
    calls = [call(0, None, 0, 400, 200), call(1, 0, 600, 100, 500)]
    text = [{"role": "user", "content": "So we add the two numbers. " * 190}, {"role": "system", "content": "s"}]
    return replace(episode(), calls=calls, timelines=[], messages=[*text, *text], untrained=type(episode().untrained)())


def measured(take: Callable[[], Any], write: Callable[[Any], None], ack: Callable[[Any], None], rounds: int) -> Seconds:
    """Seconds of each of the three over all rounds."""
    took = dict.fromkeys(DOING, 0.0)
    for _ in range(rounds):
        marks = [time.perf_counter()]
        held = take()
        marks.append(time.perf_counter())
        write(held)
        marks.append(time.perf_counter())
        ack(held)
        marks.append(time.perf_counter())
        for name, begun, ended in zip(DOING, marks, marks[1:], strict=False):
            took[name] += ended - begun
    return took


def ours(address: str, rounds: int) -> Seconds:
    store, whole = open_shared(address), of_20_kb()
    fresh = (replace(whole, uuid=uuid.uuid4().hex) for _ in iter(int, 1))
    return measured(
        lambda: store.lease(1)[0], lambda lease: store.put(lease, Kept(next(fresh))), store.close, rounds
    )  # fmt: skip


def content() -> bytes:
    """An episode as bytes."""
    row, arrays = encode(of_20_kb())
    return dumps(row).encode() + arrays


def raw_sqlite(address: str, rounds: int) -> Seconds:
    base = sqlite3.connect(address.removeprefix("sqlite:") + ".raw", timeout=60, isolation_level=None)
    base.execute("PRAGMA synchronous=FULL")
    data = content()

    def one(*statement: Any) -> Any:
        base.execute("BEGIN IMMEDIATE")
        found = base.execute(*statement).fetchone()
        base.execute("COMMIT")
        assert found is not None, "the lease is another's"
        return found

    first = "SELECT place FROM rows WHERE state = 0 ORDER BY place LIMIT 1"
    taken = f"UPDATE rows SET state = 1, fence = fence + 1, until = ? WHERE place = ({first}) RETURNING place, fence"
    held = "place = ? AND state = 1 AND fence = ?"
    put = f"INSERT INTO ends SELECT ?, place, ? FROM rows WHERE {held} RETURNING place"
    return measured(
        lambda: one(taken, (time.time() + 120,)),
        lambda lease: one(put, (uuid.uuid4().hex, data, *lease)),
        lambda lease: one(f"UPDATE rows SET state = 2 WHERE {held} RETURNING place", lease),
        rounds,
    )


def raw_mongodb(address: str, rounds: int) -> Seconds:
    from pymongo import MongoClient, WriteConcern

    base: Any = MongoClient(address).get_database("raw", write_concern=WriteConcern(w="majority", j=True))
    data = content()
    taken: list[Any] = [{"$set": {"state": 1, "fence": {"$add": ["$fence", 1]}, "until": {"$add": ["$$NOW", 120_000]}}}]

    def put(held: dict[str, Any]) -> None:
        held["end"] = uuid.uuid4().hex
        base.ends.insert_one({"_id": held["end"], "place": held["_id"], "data": data})

    def ack(held: dict[str, Any]) -> None:
        mine = {"_id": held["_id"], "state": 1, "fence": held["fence"]}
        assert base.rows.update_one(mine, {"$set": {"state": 2, "end": held["end"]}}).matched_count

    return measured(
        lambda: base.rows.find_one_and_update({"state": 0}, taken, sort=[("_id", 1)], return_document=True),
        put,
        ack,
        rounds,
    )  # fmt: skip


def prepare(kind: str, address: str, rows: int) -> None:
    """What the raw one claims, and a store that is there."""
    open_shared(address)
    if kind == "sqlite":
        base = sqlite3.connect(address.removeprefix("sqlite:") + ".raw", isolation_level=None)
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("CREATE TABLE rows (place INTEGER PRIMARY KEY, state INTEGER, fence INTEGER, until REAL)")
        base.execute("CREATE INDEX by_state ON rows (state, place)")
        base.execute("CREATE TABLE ends (uuid TEXT PRIMARY KEY, place INTEGER, data BLOB)")
        base.execute("CREATE INDEX of_place ON ends (place)")
        base.execute("BEGIN")
        base.executemany("INSERT INTO rows VALUES (?, 0, 0, 0)", [(place,) for place in range(rows)])
        base.execute("COMMIT")
        return
    from pymongo import MongoClient

    raw: Any = MongoClient(address)["raw"]
    raw.rows.create_index([("state", 1), ("_id", 1)])
    raw.rows.insert_many([{"_id": place, "state": 0, "fence": 0} for place in range(rows)])


def together(which: str, address: str, processes: int, rounds: int, server: int | None) -> Seconds:
    """Mean seconds of each operation, over processes that run at once, and processor time of the three (`cpu`) with
    that of the `server` whose id this is."""
    command = [sys.executable, str(Path(__file__)), "--worker", which, address, "--rounds", str(rounds)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    begun = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    for each in begun:
        assert each.stdout is not None and each.stdout.readline() == "ready\n"
    for each in begun:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    before = _processor_of(server)
    took = [json.loads(each.communicate()[0]) for each in begun]
    mean = {name: sum(each[name] for each in took) / processes / rounds for name in (*DOING, "cpu")}
    return mean | {"cpu": mean["cpu"] + (_processor_of(server) - before) / processes / rounds}


def _processor_of(server: int | None) -> float:
    return sum(psutil.Process(server).cpu_times()[:2]) if server else 0.0


def with_processor(done: Seconds, before: resource.struct_rusage) -> Seconds:
    now = resource.getrusage(resource.RUSAGE_SELF)
    return done | {"cpu": now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime}


@contextmanager
def address_of(kind: str) -> Iterator[tuple[str, int | None]]:
    """Where a store is to be, and the id of its server."""
    with tempfile.TemporaryDirectory(prefix="bench_store") as folder:
        if kind == "sqlite":
            yield f"sqlite:{folder}/store.sqlite", None
            return
        server = Mongod(Path(folder))
        try:
            yield f"{server.uri}/bench", server.pid
        finally:
            server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=["sqlite", "mongodb"], default=["sqlite", "mongodb"])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        which, address = options.worker
        done = {"ajet": ours, "sqlite": raw_sqlite, "mongodb": raw_mongodb}[which]
        done(address, 5)  # what is made or imported at first
        print("ready", flush=True)
        sys.stdin.readline()
        before = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps(with_processor(done(address, options.rounds), before)))
        return 0
    worst = float("inf")
    print(f"an episode: {len(content()) / 1000:.1f} kB; operations a second, all processes together")
    for kind in options.kinds:
        if kind == "mongodb" and server_file() is None:
            print("mongodb: no server is installed (make setup)")
            continue
        for processes in options.processes:
            with address_of(kind) as (address, server):
                prepare(kind, address, processes * (options.rounds + 100))
                turns = [
                    [together(which, address, processes, options.rounds // 4, server) for which in ("ajet", kind)]
                    for _ in range(4)
                ]
            mine, raw = ({name: sum(turn[at][name] for turn in turns) / 4 for name in (*DOING, "cpu")} for at in (0, 1))
            mine["all"], raw["all"] = (sum(each[name] for name in DOING) for each in (mine, raw))
            for name in (*DOING, "all"):
                told = f"{kind:8} {processes} process{'es' * (processes > 1):2} {name:6}"
                told += f" ajet {processes / mine[name]:7.0f}  raw {processes / raw[name]:7.0f}"
                print(f"{told}  ratio {raw[name] / mine[name]:.2f}", flush=True)
            told = f"{kind:8} {processes} process{'es' * (processes > 1):2} {'cpu ms':6}"
            told += f" ajet {1000 * mine['cpu']:7.2f}  raw {1000 * raw['cpu']:7.2f}"
            print(f"{told}  ratio {raw['cpu'] / mine['cpu']:.2f}", flush=True)
            ratio = raw["all"] / mine["all"]
            kept(f"{kind}, {processes} at once", ratio)
            worst = min(worst, ratio)
    if worst == float("inf"):
        print("nothing was measured")
        return 1
    print(f"lowest ratio of all three together: {worst:.2f} (limit {LIMIT})")
    return 0 if kept("lowest against the raw database", worst, at_least=LIMIT) else 1


if __name__ == "__main__":
    sys.exit(main())
