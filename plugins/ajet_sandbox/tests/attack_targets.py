"""What the attacks go for: a secret behind everything that a sandbox must keep shut.

Invariant: all of it is made for the attacks and gone afterwards; nothing of it is anybody's.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SECRET = f"ajet-secret-{secrets.token_hex(8)}"
VARIABLE = "AJET_SANDBOX_ATTACK"


@dataclass(frozen=True, slots=True)
class Targets:
    """The places of the secrets."""

    folder: str
    """One of mode 777."""
    shown: str
    """A project's, which a sandbox may be shown."""
    dotenv: str
    """A file of keys below it, which everybody may read."""
    lock: str
    """A run's, in a record below it, which everybody may read."""
    shm: str
    """A file beside it that SQLite locks."""
    file: str
    pid: int
    ticks: str
    """When it began."""
    name: str
    """Of a file that nobody has."""
    users: list[str]
    tcp: int
    udp: int
    unix: str
    abstract: str


@contextmanager
def targets() -> Iterator[Targets]:
    """Make them. Raises OSError."""
    with ExitStack() as made:
        folder = made.enter_context(tempfile.TemporaryDirectory(prefix="ajet-attacks-"))
        os.chmod(folder, 0o777)
        file = Path(folder, "secret")
        file.write_text(SECRET)
        file.chmod(0o600)
        shown = made.enter_context(tempfile.TemporaryDirectory(prefix="ajet-attacks-"))
        os.chmod(shown, 0o755)
        dotenv = Path(shown, "backend", ".env")
        dotenv.parent.mkdir(mode=0o755)
        dotenv.write_text(SECRET)
        dotenv.chmod(0o644)
        lock, shm = _make_record(Path(shown, "launcher_record", "run"))
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = SECRET
        made.callback(os.environ.pop, VARIABLE, before)
        path, abstract = f"{folder}/socket", f"\0ajet-{secrets.token_hex(8)}"
        sockets = [
            _opened(made, socket.AF_INET, ("127.0.0.1", 0)), _opened(made, socket.AF_UNIX, path),
            _opened(made, socket.AF_UNIX, abstract),
        ]  # fmt: skip
        os.chmod(path, 0o777)
        udp = made.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        for listening in sockets:
            threading.Thread(target=_greet, args=(listening,), daemon=True).start()
        threading.Thread(target=_reply, args=(udp,), daemon=True).start()
        users = Path("/etc/passwd").read_text().splitlines() if os.path.exists("/etc/passwd") else []
        tcp, name = sockets[0].getsockname()[1], f"ajet-{secrets.token_hex(8)}"
        ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        at = (tcp, udp.getsockname()[1], path, abstract)
        yield Targets(folder, shown, str(dotenv), str(lock), str(shm), str(file), os.getpid(), ticks, name, users, *at)


def _make_record(folder: Path) -> tuple[Path, Path]:
    """Make what a run's folder has, readable by everybody. Return its lock and the file that SQLite locks."""
    folder.mkdir(parents=True)
    for each in (folder.parent, folder):
        each.chmod(0o755)
    for name in ("run.json", ".lock", "store.db-shm"):
        (folder / name).touch()
        (folder / name).chmod(0o644)
    return folder / ".lock", folder / "store.db-shm"


def _opened(made: ExitStack, family: int, address: str | tuple[str, int]) -> socket.socket:
    listening = made.enter_context(socket.socket(family))
    listening.bind(address)
    listening.listen()
    made.callback(listening.shutdown, socket.SHUT_RDWR)
    return listening


def _greet(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            guest, _ = listening.accept()
            with guest:
                guest.sendall(SECRET.encode())


def _reply(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            _, guest = listening.recvfrom(64)
            listening.sendto(SECRET.encode(), guest)
