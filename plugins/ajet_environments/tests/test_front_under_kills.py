"""Many episodes over few instances of a server that keeps state, while its processes are killed: each episode ends with
what is true of it, and none with what another one did."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from ajet_environments.hosting.lifetime import start_environment, stop_environment
from ajet_mcp.contract import CallFailedError, Limits, Session
from ajet_mcp.running_environments import RunningEnvironment
from ajet_mcp.servers import Server
from ajet_mcp.thin import ThinClient
from ajet_mcp.thin.server import close_all

NOTES = Path(__file__).parents[3] / "tests" / "support" / "notes_server.py"
COMPLETED, LOST = "completed", "lost by the environment"


class Trial:
    """`episodes` at once over `instances` of the notes server. Of each `every` episodes one kills the process that it
    is in the midst of; after each `every` that ended, any process is killed, idle ones and those that reset too."""

    def __init__(self, front: RunningEnvironment, *, episodes: int, instances: int, every: int) -> None:
        self.front, self.episodes, self.instances, self.every = front, episodes, instances, every
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.kills, self.sure, self.most = 0, 0, 0
        self._draw = random.Random(0)

    async def run(self, seconds: float) -> None:
        headers = {"Authorization": f"Bearer {self.front.token}"}
        server = Server("front", "http", url=self.front.url, headers=headers, timeout=seconds)
        try:
            played = (self._play(ThinClient(), server, number, seconds) for number in range(self.episodes))
            await asyncio.wait_for(asyncio.gather(*played), seconds)
        finally:
            await close_all()

    async def _play(self, client: ThinClient, server: Server, number: int, seconds: float) -> None:
        """Notes of one's own, and nobody else's."""
        session: Session | None = None
        name = f"e{number}"
        try:
            session = await client.open(server, Limits(start=seconds))
            await session.call("note", {"text": f"{name}a"})
            if number % self.every == self.every - 1:
                reply = await session.call("whoami", {})
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(int(reply.content[0]["text"])).kill()
                    self.kills, self.sure = self.kills + 1, self.sure + 1
            await session.call("note", {"text": f"{name}b"})
            reply = await session.call("notes", {})
            if reply.failed or reply.content[0]["text"] != f"{name}a, {name}b":
                self.wrong.append(f"{name}: {reply}")
            self._end(COMPLETED)
        except CallFailedError as problem:
            if problem.boundary != "environment" or problem.kind != "environment":
                self.wrong.append(f"{name}: {problem.kind} {problem}")
            self._end(LOST)
        finally:
            if session is not None:
                await session.close()

    def _end(self, status: str) -> None:
        self.ended[status] += 1
        if self.ended.total() % self.every or self.ended.total() == self.episodes:
            return
        processes = self.processes()
        self.most = max(self.most, len(processes))
        if processes:
            with suppress(psutil.NoSuchProcess):
                self._draw.choice(processes).kill()
                self.kills += 1

    def processes(self) -> list[psutil.Process]:
        found = []
        for each in psutil.Process(self.front.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if str(NOTES) in each.cmdline() and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
        return found


def wait_until_free(front: RunningEnvironment, seconds: float) -> dict[str, Any]:
    """Return the state once no instance is in use (each is reset after its episode), or after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        health: dict[str, Any] = httpx.get(f"{front.address}/health").json()
        if not health["servers"]["notes"]["used"] or time.monotonic() > end:
            return health
        time.sleep(0.1)


SMALL = {"episodes": 40, "instances": 3, "every": 8}
LARGE = {"episodes": 1000, "instances": 8, "every": 25}


@pytest.mark.parametrize(
    "size", [pytest.param(SMALL, marks=pytest.mark.slow), pytest.param(LARGE, marks=pytest.mark.extra_slow)]
)
def test_each_episode_ends_with_what_is_true_of_it(
    size: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJET_STATE", str(tmp_path / "state"))
    file = tmp_path / "many.yaml"
    notes = f"{{command: {sys.executable}, args: [-I, -S, {NOTES}], instances: {size['instances']}, reset: forget}}"
    file.write_text(f"name: many\nmcpServers: {{notes: {notes}}}\ncapacity: {size['episodes']}\n")
    front = start_environment(str(file), port=0)
    try:
        trial = Trial(front, **size)
        asyncio.run(trial.run(seconds=300))
        health = wait_until_free(front, seconds=30)
    finally:
        stop_environment("many")
    assert not trial.wrong, trial.wrong[:5]
    assert trial.ended.total() == size["episodes"] and trial.ended[COMPLETED] > 0
    assert trial.sure <= trial.ended[LOST] <= trial.kills, "a kill takes the episode of its process, and no other"
    assert 0 < trial.sure < trial.kills
    assert trial.most <= size["instances"]
    assert health["servers"]["notes"]["used"] == 0 and health["episodes"] == 0, "all were given back"
