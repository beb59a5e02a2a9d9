"""A server of `ajet serve` over a scripted engine, asked over its socket as any program would.

Only this module, `gateways.py`, `deployed.py` and `observed.py` name internals of what serves. `RunningServer` also
tells what the trainer behind the server would be given; faults that no client can cause are its methods, by name.
What few tests need is imported where it is used: half a second for each of the other files.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet.client import request_sender
from ajet.config import Experiment
from ajet.engine.scripted import ScriptedEngine
from ajet.gateway import Gateway
from ajet.gateway.limits import ServerCounters, ServerLimits
from ajet.rollout.served import EpisodeRegistry, EpisodeStore, deadlines, http, make_routes
from ajet.schema.episode import Episode, Group
from ajet.schema.task import Task
from ajet.store import RunStore, StoreUnavailableError
from ajet.store.contract import StoreDownError
from ajet.store.shared import StoreOptions
from ajet.store.sqlite_store import SqliteStore
from ajet.task_judge import Judge
from ajet.task_reader import TaskOrder
from tests.support.gateways import RunningGateway
from tests.support.rollouts import renderer

__all__ = [
    "AwayStore", "KEY", "LONGEST_PAUSE", "Recorder", "RunningServer", "ServerLimits", "StoreUnavailableError",
    "StoreDownError",
    "episode_routes", "hold_wrong_keys", "kept_ends", "open_sqlite_store", "pass_client_pauses", "read_tasks",
    "reply_types", "start_serving",
]  # fmt: skip

KEY = "an-admin-key"
LONGEST_PAUSE = request_sender.LONGEST_PAUSE
"""Seconds that `ajet.client` waits at most before it asks again."""
HOUR_S, GLANCE_S = 3600.0, 0.05


@dataclass
class RunningServer:
    """A server and a client that holds its admin key."""

    desk: EpisodeRegistry
    gateway: RunningGateway
    engine: ScriptedEngine
    store: RunStore
    client: httpx.Client

    # What a client does.

    def open(self, **body: Any) -> dict[str, Any]:
        """Open an episode."""
        answer = self.client.post("/episodes", json=body)
        assert answer.status_code == 201, answer.text
        opened: dict[str, Any] = answer.json()
        return opened

    def ask(self, opened: dict[str, Any], text: str = "hello", **more: Any) -> httpx.Response:
        """Make one model call of that episode."""
        body = {"model": "ajet", "messages": [{"role": "user", "content": text}], **more}
        headers = {"authorization": f"Bearer {opened['api_key']}"}
        return httpx.post(f"{opened['base_url']}/chat/completions", json=body, headers=headers, timeout=60)

    def finish(self, opened: dict[str, Any], **body: Any) -> httpx.Response:
        """Say how it went."""
        return self.client.post(f"/episodes/{opened['episode']}/finish", json=body)

    def play(self, reward: float = 1.0, **body: Any) -> dict[str, Any]:
        """Open, ask once, finish."""
        opened = self.open(**body)
        assert self.ask(opened).status_code == 200
        answer = self.finish(opened, reward=reward)
        assert answer.status_code == 200, answer.text
        ended: dict[str, Any] = answer.json()
        return ended

    # What the trainer is given, and what it does.

    def take(self) -> Episode | Group:
        """Wait for the next result."""
        return self.desk.results.get(timeout=60)

    def take_episode(self) -> Episode:
        """Wait for the next result, which is a single episode."""
        result = self.take()
        assert isinstance(result, Episode)
        return result

    def take_group(self) -> Group:
        """Wait for the next result, which is a group."""
        result = self.take()
        assert isinstance(result, Group)
        return result

    @property
    def results_waiting(self) -> int:
        """The number of results that nobody has taken."""
        return self.desk.results.qsize()

    @property
    def is_playing(self) -> bool:
        """True if an episode is open."""
        return self.desk.open_count

    @property
    def expects_results(self) -> bool:
        """True if a result is still to be taken."""
        return self.desk.has_pending

    def mark_trained(self, orders: list[int], step: int) -> None:
        """Note that groups and episodes of these orders were used in a step."""
        self.store.use(orders, step)

    def save(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the store."""
        return self.store.commit()

    def forget_before(self, step: int) -> None:
        """Let go of what no checkpoint needs any more."""
        self.store.forget(step)

    def tasks_begun(self) -> list[int]:
        """Return the places of the tasks that were begun and not trained on."""
        return self.store.begun()

    def complete_orders(self) -> list[int]:
        """Return the orders of the groups that the store holds complete."""
        return [lease.order for lease in self.store.closed()]

    def sort_into_batch(self, result: Episode | Group) -> tuple[list[Episode], list[Episode]]:
        """Return (held out, alone) of a batch to which this result alone was added."""
        from ajet.train.sources.served_batch import ServedBatch

        batch = ServedBatch(1)
        batch.add(result)
        return batch.held_out, batch.alone

    def close(self) -> None:
        """End all episodes, as a server that is asked to end does."""
        self.desk.close()

    # Time that passes.

    def forgotten(self, name: str) -> None:
        """As if the client of that episode had said nothing for an hour."""
        served = self.desk.open_episodes[name]
        served.since -= HOUR_S
        served.session.recorder.settled_at -= HOUR_S

    def overdue(self) -> None:
        """As if the groups that wait had begun an hour ago."""
        for group in self.desk.groups:
            group.began -= HOUR_S

    def looked(self) -> None:
        """Return when the server has looked for episodes whose time is over, since this was called."""
        asyncio.run_coroutine_threadsafe(asyncio.sleep(3 * GLANCE_S), self.desk.loop).result(60)

    # Faults that no client can cause.

    @contextmanager
    def during_opening(self, happens: Callable[[], None]) -> Iterator[None]:
        """Within the block this happens, or is raised, while the store gives an opening its place."""
        bring = self.store.bring

        def bring_meanwhile() -> Any:
            happens()
            return bring()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.store, "bring", bring_meanwhile)
            yield

    @contextmanager
    def judging_breaks(self) -> Iterator[None]:
        """Within the block judging an end is a mistake of the server's own."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.desk.finisher, "judge_episode", None)
            yield

    def break_task_reader(self) -> None:
        """Have giving out a task be a mistake of the server's own."""

        class BrokenTasks:
            def task(self, order: int) -> None:
                raise RuntimeError("a bug")

        self.desk.groups.tasks = BrokenTasks()  # type: ignore[assignment]

    def begin_outage(self, boundary: str) -> None:
        """As if another episode had been lost at this boundary."""
        self.desk.breaker.recent.append(boundary)
        self.desk.breaker.open_if_many_lost()

    def end_outage(self) -> None:
        """As if another episode had been played whole."""
        self.desk.breaker.close_breaker()

    def allow_probe(self) -> None:
        """As if the pause before the next probe were over."""
        self.desk.breaker.next_probe = 0.0

    def take_probe(self) -> bool:
        """Begin the probe as another client would; False if it is under way."""
        return self.desk.breaker.may_probe()

    @property
    def is_outage(self) -> bool:
        """True if nothing but probes begins."""
        return self.desk.breaker.is_open

    @contextmanager
    def limits_for_new_connections(self, limits: ServerLimits) -> Iterator[None]:
        """Within the block connections that come are held to other limits."""
        shared = self.gateway.gateway._server.shared  # type: ignore[union-attr]
        usual, shared.limits = shared.limits, limits
        try:
            yield
        finally:
            shared.limits = usual


class AwayStore(RunStore):
    """A store whose server does not answer, while `away` is set and until `back` is."""

    def __init__(self) -> None:
        super().__init__(None)
        self.away, self.asked = threading.Event(), threading.Event()
        self.back = threading.Event()

    def _wait(self) -> None:
        if self.away.is_set():
            self.asked.set()
            assert self.back.wait(60)

    def bring(self) -> Any:
        self._wait()
        return super().bring()

    def close(self, lease: Any) -> None:
        self._wait()
        super().close(lease)


@contextmanager
def start_serving(
    script: Any = None,
    *,
    judge: Any = None,
    tasks: int = 0,
    held_out: int = 0,
    backlog: int | None = None,
    pending: Path | None = None,
    at: dict[str, Any] | None = None,
    keeper: EpisodeStore | None = None,
    limits: ServerLimits | None = None,
    port: int = 0,
    latency: float = 0.0,
    gateway: dict[str, Any] | None = None,
    serve: dict[str, Any] | None = None,
    store: Any = None,
    **rollout: Any,
) -> Iterator[RunningServer]:
    """Run a server.

    Args:
        judge: An object with `compute_reward`, or an opened one.
        tasks: The number of tasks in the reader.
        held_out: The number of held-out tasks.
        backlog: Groups that may wait for the trainer; None: nothing is trained.
        pending: The folder of ended episodes; what is there is taken up.
        at: What a checkpoint holds of them.
        store: Another store.
        rollout: Keys of that section; `gateway` and `serve` are the keys of theirs.
    """
    tree = {"ajet": {"gateway": gateway or {}, "serve": serve or {}, "rollout": {"num_repeat": 2, **rollout}}}
    experiment = Experiment.from_dict(tree, base=Path.cwd())
    words = renderer()
    engine = ScriptedEngine(
        script or (lambda _: "yes"), encode=words.encode, end_id=words.end_ids[0], latency=latency
    )  # fmt: skip
    served = Gateway(engine, words, max_model_len=18000, max_response_tokens=4096, limits=limits, port=port).start()
    known = [Task(main_query=f"task {n}", task_id=f"t{n}") for n in range(tasks)]
    order = TaskOrder(known, seed=0, shuffle=False) if known else None
    split = "debug" if backlog is None else "train"
    store = store or RunStore(pending, at=at)
    patch = pytest.MonkeyPatch()
    patch.setattr(deadlines, "CHECK_INTERVAL", GLANCE_S)
    desk = EpisodeRegistry(
        experiment,
        served,
        judge if isinstance(judge, Judge) else Judge(judge),
        store,
        order,
        run_id="test",
        split=split,  # type: ignore[arg-type]
        backlog=backlog,
        episode_store=keeper or (store if pending is not None else None),
        held_out=[Task(main_query=f"held out {n}", task_id=f"h{n}") for n in range(held_out)],
    )
    desk.restore()
    served.add_routes(make_routes(desk, KEY))
    root = served.base_url.removesuffix("/v1")
    try:
        with httpx.Client(base_url=root, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
            yield RunningServer(desk, RunningGateway(served, engine, words), engine, store, client)
    finally:
        desk.close()
        served.close()
        patch.undo()


@contextmanager
def hold_wrong_keys(seconds: float) -> Iterator[None]:
    """Within the block each pause after a wrong key lasts so long."""
    pause = ServerCounters.pause_after_guess
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ServerCounters, "pause_after_guess", lambda self, address: seconds if pause(self, address) else 0.0
        )
        yield


@contextmanager
def pass_client_pauses(clock: Any) -> Iterator[None]:
    """Within the block the pauses of `ajet.client` pass by this clock: it has `monotonic` and `sleep`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_sender, "time", clock)
        yield


def kept_ends(folder: Path, at: dict[str, Any] | None = None) -> list[Episode]:
    """Return the ended episodes that the next server takes up."""
    store = RunStore(folder, at=at)
    return [kept.episode for lease in (*store.closed(), *store.lease_kept()) for kept in lease.attempts]


def open_sqlite_store(path: Path) -> SqliteStore:
    """Open a store in SQLite as a server that trains does."""
    return SqliteStore(path, StoreOptions(rolls=True))


def read_tasks(yaml: Path, split: str = "train") -> list[Task]:
    """Read the tasks that a configuration names."""
    from ajet.config import load_experiment
    from ajet.task_reader import open_reader

    return list(open_reader(load_experiment(yaml)).tasks(split))  # type: ignore[arg-type]


class Recorder:
    """What records the ends of a server without a trainer, in a run's folder below `root`."""

    def __init__(self, yaml: Path, root: Path) -> None:
        from ajet.commands.recording import EpisodeRecording
        from ajet.config import load_experiment
        from ajet.record import RunDirectory

        run = RunDirectory.open(load_experiment(yaml), root=root, kind="serve", resume="never", fresh=False)
        self.keeper = EpisodeRecording(run)
        self.episodes = run.path / "episodes"

    def record_rest(self, results: list[Episode | Group]) -> None:
        """Record what the server handed over at its end."""
        self.keeper.record_missing(one for one in results if isinstance(one, Episode))


def reply_types() -> Any:
    """Return the module whose classes are the replies of the documented protocol, and `openapi()` its document."""
    return http


def episode_routes(served: RunningServer) -> set[tuple[str, str]]:
    """Return (path, method) of what the server answers about episodes."""
    return {
        (route.path.replace("{name}", "{episode}"), method.lower())
        for route in make_routes(served.desk, KEY)
        for method in getattr(route, "methods", ()) - {"HEAD"}
        if route.path.startswith("/episodes")
    }
