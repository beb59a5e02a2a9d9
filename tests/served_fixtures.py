"""A desk over a scripted engine, asked over the socket as any program would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ajet.config import Experiment
from ajet.engine.scripted import ScriptedEngine
from ajet.gateway import Gateway
from ajet.gateway.limits import Limits
from ajet.rollout.served import Desk, Keeper, deadlines, routes
from ajet.schema.task import Task
from ajet.store import RunStore
from ajet.task_judge import Judge
from ajet.task_reader import TaskOrder
from tests.rollout_fixtures import renderer

KEY = "an-admin-key"
HOUR_S, GLANCE_S = 3600.0, 0.05


@dataclass
class Counter:
    """A served desk and a client that holds its admin key."""

    desk: Desk
    gateway: Gateway
    engine: ScriptedEngine
    store: RunStore
    client: httpx.Client

    def open(self, **body: Any) -> dict[str, Any]:
        """Open an episode."""
        answer = self.client.post("/episodes", json=body)
        assert answer.status_code == 201, answer.text
        opened: dict[str, Any] = answer.json()
        return opened

    def ask(self, opened: dict[str, Any], text: str = "hello", **more: Any) -> httpx.Response:
        """One model call of that episode."""
        body = {"model": "ajet", "messages": [{"role": "user", "content": text}], **more}
        headers = {"authorization": f"Bearer {opened['api_key']}"}
        return httpx.post(f"{opened['base_url']}/chat/completions", json=body, headers=headers, timeout=60)

    def finish(self, opened: dict[str, Any], **body: Any) -> httpx.Response:
        """Say how it went."""
        return self.client.post(f"/episodes/{opened['episode']}/finish", json=body)

    def forgotten(self, name: str) -> None:
        """As if the client of that episode had said nothing for an hour."""
        served = self.desk._open[name]
        served.since -= HOUR_S
        served.session._ledger.recorder.settled_at -= HOUR_S

    def overdue(self) -> None:
        """As if the groups that wait had begun an hour ago."""
        for group in self.desk._groups:
            group.began -= HOUR_S

    def looked(self) -> None:
        """Return when the desk has looked for episodes whose time is over, since this was called."""
        asyncio.run_coroutine_threadsafe(asyncio.sleep(3 * GLANCE_S), self.desk._loop).result(60)

    def play(self, reward: float = 1.0, **body: Any) -> dict[str, Any]:
        """Open, ask once, finish."""
        opened = self.open(**body)
        assert self.ask(opened).status_code == 200
        answer = self.finish(opened, reward=reward)
        assert answer.status_code == 200, answer.text
        ended: dict[str, Any] = answer.json()
        return ended


@contextmanager
def counter(
    script: Any = None,
    *,
    judge: Any = None,
    tasks: int = 0,
    held_out: int = 0,
    backlog: int | None = None,
    pending: Path | None = None,
    at: dict[str, Any] | None = None,
    keeper: Keeper | None = None,
    limits: Limits | None = None,
    latency: float = 0.0,
    gateway: dict[str, Any] | None = None,
    serve: dict[str, Any] | None = None,
    store: Any = None,
    **rollout: Any,
) -> Iterator[Counter]:
    """`tasks`, `held_out`: so many in the reader; `judge`: an object with `compute_reward`, or an opened one;
    `pending`: where ended episodes are kept, and what is there is taken up; `at`: what a checkpoint holds of them;
    `store`: another one; `rollout`: keys of that section."""
    tree = {"ajet": {"gateway": gateway or {}, "serve": serve or {}, "rollout": {"num_repeat": 2, **rollout}}}
    experiment = Experiment.from_dict(tree, base=Path.cwd())
    words = renderer()
    engine = ScriptedEngine(
        script or (lambda _: "yes"), encode=words.encode, end_id=words.end_ids[0], latency=latency
    )  # fmt: skip
    served = Gateway(engine, words, max_model_len=18000, max_response_tokens=4096, limits=limits).start()
    known = [Task(main_query=f"task {n}", task_id=f"t{n}") for n in range(tasks)]
    order = TaskOrder(known, seed=0, shuffle=False) if known else None
    split = "debug" if backlog is None else "train"
    store = store or RunStore(pending, at=at)
    patch = pytest.MonkeyPatch()
    patch.setattr(deadlines, "LONGEST_GLANCE", GLANCE_S)
    desk = Desk(
        experiment,
        served,
        judge if isinstance(judge, Judge) else Judge(judge),
        store,
        order,
        run_id="test",
        split=split,  # type: ignore[arg-type]
        backlog=backlog,
        keeper=keeper or (store if pending is not None else None),
        held_out=[Task(main_query=f"held out {n}", task_id=f"h{n}") for n in range(held_out)],
    )
    desk.restore()
    served.add_routes(routes(desk, KEY))
    root = served.base_url.removesuffix("/v1")
    try:
        with httpx.Client(base_url=root, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
            yield Counter(desk, served, engine, store, client)
    finally:
        desk.close()
        served.close()
        patch.undo()
