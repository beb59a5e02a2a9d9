"""Sandboxes for services with `confined: true`, and the forwarding of one host port into the sandbox.

Invariants: a confined service sees the same files as a confined tool server (`ajet_sandbox.walls`), with a read-only
working folder and no network. One host port is forwarded into the sandbox through a Unix socket created on the host. No
connection leads out. The host port listens once the program inside answers, and closes with the program.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ajet.config.plugins import list_package_roots
from ajet.record.held_folder import make_workdir
from ajet.record.remove_folder import remove_folder
from ajet.schema.commands import format_command as ajet_command
from ajet.schema.errors import ConfigError
from ajet.schema.sandbox import Limits
from ajet_environments.config import Companion
from ajet_sandbox.choose import choose_mechanism
from ajet_sandbox.doorway import BACKLOG, listen_at, remove_dead_doors, run_until_closed
from ajet_sandbox.identity import choose_uid
from ajet_sandbox.inside import door
from ajet_sandbox.program import Walls, wall_program
from ajet_sandbox.walls import ConfinedProgram, holds_home

FOLDER_PREFIX = "ajet-service-"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
FILE_LIMIT = resource.RLIMIT_NOFILE
DISK_BYTES = 8 << 30
"""Bytes of /tmp inside, and of a single file."""


def require_confinable(name: str, companion: Companion, folder: Path) -> None:
    """Raise ConfigError if a service with `confined: true` cannot run in a sandbox.

    The reason is a setting (unknown port, a shown home folder) or a machine without bubblewrap. `shows` without
    `confined` is an error too.

    Args:
        folder: working folder of the service.
    """
    if not companion.confined:
        if companion.shows:
            raise ConfigError(
                f"The service {name} has `shows`, which has an effect only for a confined service: others can "
                "read all your files.",
                where=f"ajet.services.{name}.shows",
                do="set confined: true, or remove shows",
            )
        return
    if _parse_port(companion) is None:
        raise ConfigError(
            f"The service {name} is confined, but its port is unknown: {companion.ready or 'null'} is not an "
            "address of this machine.",
            where=f"ajet.services.{name}.ready",
            expected="http://127.0.0.1:PORT/… or tcp://127.0.0.1:PORT, the only port that leads into the sandbox",
        )
    for readable in (folder, *_resolve_shown(companion, folder)):
        if holds_home(readable):
            raise ConfigError(
                f"The service {name} is confined, but {readable} contains a complete home folder, which a confined "
                "service must not read.",
                where=f"ajet.services.{name}",
                do="set cwd to a separate folder",
            )
    try:
        choose_mechanism("bubblewrap")
    except ConfigError as error:
        raise ConfigError(
            f"The service {name} is confined, but its sandbox cannot be created: {error.what}",
            where=f"ajet.services.{name}.confined",
            expected="bubblewrap, whatever environment.sandbox says",
            do=f"{ajet_command('doctor')} reports what is missing; `confined: false` runs the service as the "
            "current user",
        ) from None


class ServiceCell:
    """Holds the sandbox of one started service: command line, sockets, folder and forwarding thread.

    Args of the constructor: the service's settings, its command line, and its working folder.

    Raises:
        OSError: the port is in use.
        SandboxFailure: the sandbox cannot be prepared.
    """

    def __init__(self, companion: Companion, arguments: list[str], folder: Path) -> None:
        port = _parse_port(companion)
        assert port is not None, "require_confinable refuses a URL without a port"
        remove_dead_doors(FOLDER_PREFIX, "door")
        self._root = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        self._root.chmod(0o711)
        self.is_open, self.port_problem = False, ""
        """`is_open`: True once the port forwards. `port_problem`: why the port cannot be used, if another process took
        it."""
        self._ready_fd: int | None = None
        self._loop, self._is_closing = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._serve_port, name="ajet-service-door", daemon=True)
        self._listener = socket.socket()
        inside_socket = socket.socket(socket.AF_UNIX)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(("127.0.0.1", port))  # it listens once the service answers
            listen_at(str(self._root / "door"), inside_socket)
            self._ready_fd, inside_ready_fd = os.pipe()
            try:
                settings = {
                    "port": port,
                    "listening": inside_socket.fileno(),
                    "ready_fd": inside_ready_fd,
                    "folder": str(folder),
                }
                program = self._wall_program(companion, {**settings, "command": arguments}, folder)
            except BaseException:
                os.close(inside_ready_fd)
                raise
        except BaseException:
            inside_socket.close()
            self.close()
            raise
        self._inside_socket = inside_socket
        self.program = replace(program, descriptors=(*program.descriptors, inside_socket.fileno(), inside_ready_fd))
        """The command line and descriptors to start."""
        self._child_fds = (*program.descriptors, inside_ready_fd)

    def start_forwarding(self) -> None:
        """Close this process's copies of the child's descriptors, and start the forwarding thread.

        Called after an attempt to start the child, also after a failed one.
        """
        for fd in self._child_fds:
            os.close(fd)
        self._inside_socket.close()
        self._thread.start()

    def close(self) -> None:
        """Close the host port, stop the forwarding thread, and remove the sandbox's temporary folder. Idempotent."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            with suppress(RuntimeError):  # the thread has just closed its loop
                self._loop.call_soon_threadsafe(self._is_closing.set)
            self._thread.join()
        self._loop.close()
        self._listener.close()
        if self._ready_fd is not None:
            os.close(self._ready_fd)
        remove_folder(self._root)

    def _wall_program(self, companion: Companion, settings: dict[str, object], folder: Path) -> ConfinedProgram:
        """Return the sandboxed command line that starts the service's program inside.

        `door`, run by a bare Python in the sandbox, forwards the port and starts the program from `settings`.
        """
        uid = choose_uid()
        readable = (folder, *_resolve_shown(companion, folder), *list_package_roots())
        walls = Walls(make_workdir(self._root, "work", uid), readable, uid, _build_limits())
        path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
        # -I -S: no site packages and no variables of the user; `door` needs the standard library only.
        command = [sys.executable, "-I", "-S", door.__file__, json.dumps(settings)]
        return wall_program(command, walls, {"PATH": path, "PYTHONUNBUFFERED": "1", **companion.env})

    def _serve_port(self) -> None:
        """Run the forwarding thread: listen on the host port once the service answers, until `close`.

        Each connection to the port is forwarded through the Unix socket `door` into the sandbox.
        """

        async def connect() -> door.Streams:
            return await asyncio.open_unix_connection(str(self._root / "door"))

        async def until_closed() -> None:
            """Wait until the program in the sandbox answers, then forward the port until `close`."""
            has_answered = asyncio.Event()
            assert self._ready_fd is not None
            self._loop.add_reader(self._ready_fd, has_answered.set)
            closed = asyncio.create_task(self._is_closing.wait())
            await asyncio.wait([closed, asyncio.create_task(has_answered.wait())], return_when=asyncio.FIRST_COMPLETED)
            self._loop.remove_reader(self._ready_fd)
            # An empty read is the end of the pipe: the program ended before it answered.
            if not closed.done() and os.read(self._ready_fd, 1):
                try:
                    server = await asyncio.start_server(
                        door.make_forwarder(connect), sock=self._listener, backlog=BACKLOG
                    )
                except OSError as problem:  # two sockets may be bound to one port until one listens
                    self.port_problem = problem.strerror or str(problem)
                    await closed
                    return
                self.is_open = True
                await closed
                server.close()

        run_until_closed(self._loop, until_closed())


def _parse_port(companion: Companion) -> int | None:
    """Return the port of the loopback address in `ready`, or None if `ready` is no such address."""
    with suppress(ValueError):
        address = urlsplit(companion.ready or "")
        if address.scheme in ("http", "tcp") and address.hostname in LOOPBACK_HOSTS:
            return address.port
    return None


def _resolve_shown(companion: Companion, folder: Path) -> list[Path]:
    """Return the folders of the setting `shows` as absolute paths, relative ones below the working folder."""
    return [(folder / Path(path).expanduser()).resolve() for path in companion.shows]


def _build_limits() -> Limits:
    """Return the resource limits of a confined service.

    The service holds the environments of all rollouts, so only the machine's own limit bounds its memory.
    """
    max_memory, max_file_size, max_files = (
        resource.getrlimit(limit_id)[1] for limit_id in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, FILE_LIMIT)
    )
    return Limits(
        memory=max_memory, disk=_cap_limit(DISK_BYTES, max_file_size), processes=4096, files=_cap_limit(4096, max_files)
    )


def _cap_limit(wanted_limit: int, hard_limit: int) -> int:
    """Return the wanted limit, or the machine's hard limit if that is lower."""
    return wanted_limit if hard_limit == resource.RLIM_INFINITY else min(wanted_limit, hard_limit)
