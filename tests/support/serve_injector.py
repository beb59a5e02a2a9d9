"""`ajet serve` in one process: its desk, gateway, engine and store, clients that come and go, with a fault at any write
and at any call.

Real: the desk and its routes, the gateway, the store over its files or its SQLite, the checkpoints, what makes a batch.
Played: the clock, the learner (which keeps what it trained on), what becomes of each call of the engine, which client
falls silent, who is killed and when; all by one seed. A server that is killed writes nothing more, whatever code still
runs. What was trained is counted from the checkpoints, what is kept past the store, by the file or the database
itself, what was acknowledged by the clients that were told so, and which weights sampled a token by the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import random
import sqlite3
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ajet.config import Experiment
from ajet.gateway import Gateway
from ajet.rollout.served import EpisodeRegistry, make_routes
from ajet.schema.episode import Episode, Group
from ajet.schema.errors import UserError
from ajet.schema.task import Task
from ajet.store import RunStore
from ajet.store.shared import StoreOptions
from ajet.store.sqlite_store import SqliteStore
from ajet.task_judge import Judge
from ajet.task_reader import TaskOrder
from ajet.train.sources.served_batch import ServedBatch as Batch
from tests.support.faulty_disk import Kind, ServeFaults
from tests.support.faulty_engine import DIGITS, Engine, Said
from tests.support.rollouts import renderer
from tests.support.store_world import Killed

CLIENTS, REPEATS, BATCH, TASKS, KEEP, MAX_STALENESS = 5, 2, 2, 64, 3, 1
IDLE, EPISODE, DEADLINE, BATCH_SECONDS = 6_000.0, 9_000.0, 20_000.0, 5_000.0
"""Seconds of the played clock, so many that no limit passes in real ones."""
LIMITS = {"episode_timeout": EPISODE, "group_deadline": DEADLINE}
KEY = "the-key-of-the-injector"


@dataclass
class Client:
    """A program that plays an episode at a time."""

    opened: dict[str, Any] | None = None
    asks: int = 0
    """Calls that it is still to make."""
    asking: asyncio.Task[httpx.Response] | None = None
    """One that hangs."""
    end: dict[str, Any] | None = None
    """What it says of its end, once it has begun to say it."""


@dataclass
class Server:
    """A server from its start to its end."""

    store: Any
    engine: Engine
    gateway: Gateway
    desk: EpisodeRegistry
    http: httpx.AsyncClient

    async def end(self) -> None:
        """As a process ends: what its threads are at is over."""

        async def cancelled() -> None:
            mine = asyncio.current_task()
            left = [task for task in asyncio.all_tasks() if task is not mine]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await asyncio.get_running_loop().shutdown_default_executor()

        loop = self.desk.loop
        if self.desk.thread.thread.is_alive():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(cancelled(), loop))
            self.desk.thread.stop(60)
            self.desk.judge_caller.close()
        await self.http.aclose()
        self.gateway.close()
        _let_go(self.store)


class ServedWorld:
    """A server, again and again, and its clients."""

    def __init__(self, folder: Path, kind: Kind, seed: int, faults: ServeFaults, clock: list[float]) -> None:
        self.folder, self.kind, self.faults, self.clock = folder, kind, faults, clock
        self.draw = random.Random(seed)
        self.calm = False
        self.names = 0
        self.said: dict[tuple[int, ...], Said] = {}
        self.acknowledged: dict[str, dict[str, Any]] = {}
        self.clients = [Client() for _ in range(CLIENTS)]
        self.step, self.steps = 0, list[dict[str, Any]]()
        tree = {
            "gateway": {"idle_timeout": IDLE},
            "rollout": {**LIMITS, "num_repeat": REPEATS, "max_retries": 1},
            "serve": {"batch_seconds": BATCH_SECONDS},
            "data": {"train_batch_size": BATCH},
        }
        self.experiment = Experiment.from_dict({"ajet": tree}, base=folder)
        self.batch = Batch(1)

    async def turns(self, count: int) -> None:
        """So many, and then all that was begun comes to its end. Raises AssertionError where something is lost, twice
        or stuck."""
        await self._start()
        for _ in range(count):
            await self.turn()
        await self._quiet_down()
        self._check()
        await self._end(self._server)

    async def turn(self) -> None:
        """Somebody does something, and something may happen meanwhile."""
        self._later(self.draw.choice([1.0, 30.0, 300.0]))
        chance = self.draw.random()
        if chance < 0.01:
            self.faults.counts["clock"] += 1
            self.clock[0] += self.draw.choice([-7200.0, -30.0, 30.0, 7200.0])
        does = self.draw.choices([self._client, self._look, self._learn], [10, 1, 3])[0]
        self.faults.arm(often=0.4)
        try:
            if chance > 0.995:
                await self._drained()
            else:
                await self._until_death(does())
        except (Killed, UserError, OSError, sqlite3.OperationalError):  # as a server that cannot write what it learned
            await self._restart()
        finally:
            self.faults.disarm()

    def done(self) -> Counter[str]:
        """What became of all that ended."""
        kinds = Counter(kind for _, _, kind in _ends(self.steps))
        return Counter(steps=self.step, acknowledged=len(self.acknowledged), **kinds)

    def hung(self) -> None:
        """A call will get no answer. From any thread."""
        self.loop.call_soon_threadsafe(lambda: self._hangs.done() or self._hangs.set_result(None))

    async def _client(self) -> None:
        client = self.draw.choice(self.clients)
        if client.asking is not None:
            if client.asking.done():
                client.asking = None
            elif self.draw.random() < 0.1:  # it has waited for long enough
                client.asking.cancel()
                client.asking = None
            return
        chance = self.draw.random()
        if client.opened is None:
            await self.open_episodes(client)
        elif client.end is None and chance < 0.04:
            self.faults.counts["client gone"] += 1
            client.opened = None
        elif client.end is None and chance < 0.07:
            answer = await self._server.http.delete(f"/episodes/{client.opened['episode']}")
            assert answer.status_code in (200, 404), answer.text
            client.opened = None
        elif client.asks:
            await self._ask(client)
        else:
            await self._finish(client)

    async def open_episodes(self, client: Client, body: dict[str, Any] | None = None) -> None:
        own = {"task": f"task {self.draw.randrange(9)} of a client's own"}
        bodies: list[dict[str, Any]] = [{}, {}, {}, {}, own, {**own, "train": False}, {**own, "held_out": True}]
        answer = await self._server.http.post("/episodes", json=self.draw.choice(bodies) if body is None else body)
        assert answer.status_code in (201, 429, 503), answer.text
        if answer.status_code == 201:
            client.opened, client.end, client.asks = answer.json(), None, self.draw.choice([1, 1, 2])
            served = self._server.desk.open_episodes[client.opened["episode"]]
            served.began, served.since = self.clock

    async def _ask(self, client: Client) -> None:
        assert client.opened is not None
        self._hangs = asyncio.get_running_loop().create_future()
        body = {"model": "ajet", "messages": [{"role": "user", "content": f"ask {self.draw.randrange(99)}"}]}
        key = {"authorization": f"Bearer {client.opened['api_key']}"}
        asked = self._server.http.post("/v1/chat/completions", json=body, headers=key)
        client.asking, client.asks = asyncio.ensure_future(asked), client.asks - 1
        await asyncio.wait({client.asking, self._hangs}, return_when=asyncio.FIRST_COMPLETED)
        if client.asking.done():
            status = client.asking.result().status_code
            client.asking = None
            assert status in (200, 401, 410, 503)
            client.asks += status == 503 and self.draw.random() < 0.5
            client.opened = None if status in (401, 410) else client.opened

    async def _finish(self, client: Client) -> None:
        assert client.opened is not None
        ends: list[dict[str, Any]] = [{"reward": 0.0}, {"reward": 1.0}, {"reward": 0.5}, {"error": "it is down"}]
        client.end = client.end or self.draw.choices(ends, [4, 4, 4, 1])[0]
        url = f"/episodes/{client.opened['episode']}/finish"
        answer = await self._server.http.post(url, json=client.end)
        if answer.status_code == 503:  # not recorded: it is to ask again
            return
        assert answer.status_code in (200, 404, 409), answer.text
        if answer.status_code == 200:
            self.acknowledged[client.opened["episode"]] = told = answer.json()
            if self.draw.random() < 0.2:
                assert (await self._server.http.post(url, json=client.end)).json() == told
        client.opened = client.end = None

    async def _look(self) -> None:
        looks = asyncio.run_coroutine_threadsafe(self._server.desk.deadlines.check_all(), self._server.desk.loop)
        await asyncio.wrap_future(looks)

    async def _learn(self) -> None:
        """As `ServedSource` takes results and a session's commit tells the store of them."""
        server, batch = self._server, self.batch
        with contextlib.suppress(queue.Empty):
            while True:
                result = server.desk.results.get_nowait()
                for each in result.episodes if isinstance(result, Group) else [result]:
                    self._require_as_the_engine_says(each)
                batch.add(result, self.step, MAX_STALENESS)
        if not batch.is_complete(self.experiment.ajet):
            return
        for wanted, these in ((False, batch.groups), (True, batch.stale)):
            ages = [self.step - min(self._sampled_by(each), default=self.step) for each in these]
            assert all((age > MAX_STALENESS) == wanted for age in ages), (ages, wanted)
        step, alone = self.step + 1, [*batch.alone, *batch.held_out]
        server.store.use([each.order for each in (*batch.groups, *alone)], step)
        row: dict[str, Any] = {"trained": _told(batch.groups), "alone": [[each.order, each.uuid] for each in alone]}
        row["discarded"] = []
        for reason, unused in batch.unused.items():
            server.store.discard([group.order for group in unused], step, reason)
            row["discarded"] += _told(unused)
        self.steps, self.step, self.batch = [*self.steps, row], step, Batch(step + 1)
        server.engine.load(step)
        if self.calm or self.draw.random() < 0.6:
            self._save()

    def _save(self) -> None:
        told = {"steps": self.steps, "store": self._server.store.commit()}
        path = self.folder / f"step-{self.step:06}.json"
        aside = path.with_suffix(".aside")
        aside.write_text(json.dumps(told))
        os.replace(aside, path)
        self.faults.point()
        while len(found := self._checkpoints()) > KEEP:
            found[0][0].unlink()
            self._server.store.forget(len(found[1][1]["steps"]))

    async def _drained(self) -> None:
        """Asked to end, which takes a while: it is killed in it, or not."""
        self.faults.counts["drain"] += 1
        await self._until_death(asyncio.to_thread(self._server.desk.close))
        if self.step:
            self._save()
        await self._restart()

    async def _until_death(self, does: Coroutine[Any, Any, None]) -> None:
        doing = asyncio.ensure_future(does)
        await asyncio.wait({doing, self._died}, return_when=asyncio.FIRST_COMPLETED)
        if self.faults.dead:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
            raise Killed
        await doing

    async def _restart(self) -> None:
        self.faults.dead = True
        await self._end(self._server)
        there = self._there()
        if len(found := self._checkpoints()) > 1 and self.draw.random() < 0.2:
            self.faults.counts["damaged checkpoint"] += 1
            found.pop()[0].unlink()
        elif len(found) > 1 and self.draw.random() < 0.2:
            self.faults.counts["begun at the checkpoint before"] += 1
            _let_go(self._store(found[-2][1]["store"]))
        known = {uuid for uuid, _, _ in _ends(found[-1][1]["steps"] if found else [])}
        assert self.acknowledged.keys() <= there | known, "what was acknowledged is gone"
        await self._start()

    async def _end(self, server: Server) -> None:
        for client in self.clients:
            if client.asking is not None:
                client.asking.cancel()
                client.asking = None
        await server.end()
        self._revive()

    def _revive(self) -> None:
        """Who comes next is another process."""
        loop = asyncio.get_running_loop()
        self.loop, self._died = loop, loop.create_future()
        died = self._died

        def noticed() -> None:
            loop.call_soon_threadsafe(lambda: died.done() or died.set_result(None))

        self.faults.disarm()
        self.faults.dead, self.faults.died = False, noticed

    async def _start(self) -> None:
        """A server that goes on from the newest checkpoint; it may be killed as it starts."""
        while True:
            self._revive()
            found = self._checkpoints()
            saved = found[-1][1] if found else {"steps": [], "store": None}
            self.steps, self.step = saved["steps"], len(saved["steps"])
            self.batch = Batch(self.step + 1)
            server = None
            if not self.calm:
                self.faults.arm(often=0.2)
            try:
                server = self._server = self._opened(saved["store"])
                server.desk.restore()
                self.faults.disarm()
                return
            except (Killed, UserError, OSError):
                self.faults.dead = True
                if server is not None:
                    await self._end(server)

    def _opened(self, at: dict[str, Any] | None) -> Server:
        store, engine, words = self._store(at), Engine(self), renderer()
        gateway = Gateway(engine, words, max_model_len=4096, max_response_tokens=64).start()
        tasks = [Task(main_query=f"task {number}", task_id=f"t{number}") for number in range(TASKS)]
        served = EpisodeRegistry(
            self.experiment, gateway, Judge(None), store, TaskOrder(tasks, seed=0, shuffle=False),
            run_id="run", split="train", backlog=4 * BATCH, episode_store=store,
        )  # fmt: skip
        served.loop.set_exception_handler(lambda *_: None)  # of a dead process nobody asks what it died of
        gateway.add_routes(make_routes(served, KEY))
        admin = {"authorization": f"Bearer {KEY}"}
        http = httpx.AsyncClient(transport=gateway.transport(), base_url="http://serve", headers=admin, timeout=None)
        return Server(store, engine, gateway, served, http)

    def _store(self, at: dict[str, Any] | None) -> Any:
        if self.kind == "files":
            return RunStore(self.folder / "pending", ledger="run", at=at)
        return SqliteStore(self.folder / "store.sqlite", StoreOptions(rolls=True, at=at, run="run"))

    def _require_as_the_engine_says(self, episode: Episode) -> None:
        for call in episode.calls:
            if (ids := tuple(map(int, call.response_ids[:DIGITS]))) and len(ids) == DIGITS:
                ends = [*(run.first for run in call.versions[1:]), len(call.response_ids)]
                runs = zip(call.versions, ends, strict=True)
                found = [run.low for run, end in runs for _ in range(run.first, end)]
                assert found == self.said[ids].versions[: len(found)], "tokens of another version than they say"
        if episode.scored:
            last = episode.calls[-1]
            whole = self.said[tuple(map(int, last.response_ids[:DIGITS]))].whole if len(last.response_ids) else False
            assert whole or last.finish == "aborted", "scored, though its last call failed"

    def _sampled_by(self, group: Group) -> list[int]:
        calls = (call for each in group.episodes if each.scored for call in each.calls if call.trained)
        replies = (tuple(map(int, call.response_ids[:DIGITS])) for call in calls)
        return [version for reply in replies if len(reply) == DIGITS for version in self.said[reply].versions]

    async def _quiet_down(self) -> None:
        """Nothing happens any more: all that was begun is played, trained or discarded. Raises AssertionError where it
        never is."""
        self.calm = True
        self.faults.disarm()
        for _ in range(100):
            for client in self.clients:
                while client.opened is not None and client.asking is None:
                    await (self._ask(client) if client.asks else self._finish(client))
            for _ in range(2):
                self._later(DEADLINE + 1)
                await self._look()
                await self._learn()
            for client in self.clients:
                if client.asking is not None:
                    await asyncio.wait({client.asking})
                    client.asking = client.opened = None
            told = (await self._server.http.get("/episodes")).json()
            left = (told["open"], told["open_groups"], self.batch.results, self._server.store.begun())
            if not any(left):
                break
            for _ in range(REPEATS):
                await self.open_episodes(self.clients[0], {})
                while self.clients[0].opened is not None:
                    client = self.clients[0]
                    await (self._ask(client) if client.asks else self._finish(client))
        else:
            raise AssertionError(f"stuck: {left}")
        self._save()

    def _check(self) -> None:
        """None lost, none twice: by the checkpoint, by the files or the database, by clients, by the engine."""
        saved = self._checkpoints()[-1][1]
        ends = _ends(saved["steps"])
        uuids, orders = Counter(uuid for uuid, _, _ in ends), Counter[int]()
        assert set(uuids.values()) <= {1}, "an episode was used twice"
        for row in saved["steps"]:
            orders.update({order for order, *_ in (*row["trained"], *row["discarded"], *row["alone"])})
        assert set(orders.values()) <= {1}, "a position was used twice"
        assert self.acknowledged.keys() <= uuids.keys(), "what was acknowledged is lost"
        rewards = {uuid: reward for uuid, reward, kind in ends if kind != "alone"}
        for uuid, told in self.acknowledged.items():
            assert uuid not in rewards or told["reward"] == rewards[uuid], "another reward than was acknowledged"
        assert self._there() <= uuids.keys(), "what is in the store was never used"
        if self.kind == "sqlite":
            with contextlib.closing(sqlite3.connect(self.folder / "store.sqlite")) as base:
                (begun,) = base.execute("SELECT value FROM counts WHERE name = 'next'").fetchone()
                states = {state for (state,) in base.execute("SELECT state FROM positions WHERE place >= 0")}
            assert states <= {"over"}, "by the database itself"
        else:
            begun = saved["store"]["next"]
            assert saved["store"]["unfinished"] == []
        assert {order for order in orders if order >= 0} == set(range(begun)), "a position is lost"
        assert len(self._server.store.closed()) == len(self._server.store.lease_kept()) == 0

    def _there(self) -> set[str]:
        """Episodes in the store, past it."""
        if self.kind == "sqlite":
            with contextlib.closing(sqlite3.connect(self.folder / "store.sqlite")) as base:
                return {uuid for (uuid,) in base.execute("SELECT uuid FROM ends")}
        files = (self.folder / "pending").glob("step-*.jsonl")
        return {json.loads(line)["uuid"] for file in files for line in file.read_bytes().split(b"\n")[:-1]}

    def _checkpoints(self) -> list[tuple[Path, dict[str, Any]]]:
        return [(path, json.loads(path.read_text())) for path in sorted(self.folder.glob("step-*.json"))]

    def _later(self, seconds: float) -> None:
        self.clock[0] += seconds
        self.clock[1] += seconds


def _told(groups: Sequence[Group]) -> list[Any]:
    return [[group.order, [[each.uuid, each.reward] for each in group.episodes]] for group in groups]


def _ends(steps: list[dict[str, Any]]) -> list[tuple[str, float | None, str]]:
    """Each episode that a step used, with its reward and how."""
    found: list[tuple[str, float | None, str]] = []
    for row in steps:
        for kind in ("trained", "discarded"):
            found += [(uuid, reward, kind) for _, each in row[kind] for uuid, reward in each]
        found += [(uuid, None, "alone") for _, uuid in row["alone"]]
    return found


def _let_go(store: Any) -> None:
    if not isinstance(store, RunStore):
        store.disconnect()
