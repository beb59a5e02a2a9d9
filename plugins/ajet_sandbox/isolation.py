"""A sandbox an attempt: its whole workflow runs in a worker behind bubblewrap's walls.

Invariants: inside are this machine's programs, this Python, the project folder and what else is imported from, all
read-only, and an empty working folder; no variable of this environment, no other process, and no network but the
gateway's door. An attempt's sandbox is never another's: with it ends all that ran there, and all that it left is gone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ajet.config.plugins import list_package_roots
from ajet.record.remove_folder import remove_folder
from ajet.rollout.isolation.messages import WorkerSetup
from ajet.rollout.isolation.process import ProcessIsolation
from ajet.rollout.isolation.worker_process import StartedWorker, WorkerFds, build_worker_command, lower_priority
from ajet.schema.commands import format_extra_install
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import ConfigError, SandboxFailure
from ajet.schema.sandbox import Limits
from ajet_sandbox.bubblewrap import FOLDER, told_pid
from ajet_sandbox.cgroup import control_group
from ajet_sandbox.choose import limits_of
from ajet_sandbox.doorway import BACKLOG, listen_at, run_to_its_end, sweep
from ajet_sandbox.identity import fresh_uid
from ajet_sandbox.inside import door
from ajet_sandbox.walls import Shown, holds_more, walled

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.rollout.isolation: sandbox"
_MEMORY = ("ajet", "environment", "sandbox_limits", "memory")
DOOR = "/run/ajet/gateway"
_FOLDERS = "ajet-door-"
_PROBE_S = 30.0
_PROBE = """\
import os, sys
for path in sys.argv[1:]:
    os.listdir(path) if os.path.isdir(path) else open(path).close()
print('ready')
"""
"""Not only folders: of a virtual environment, `pyvenv.cfg` is shown by itself."""


class SandboxIsolation(ProcessIsolation):
    """See the module."""

    keeps_workers = False

    @classmethod
    def require_isolable(cls, experiment: Experiment, workflow_class: type[Any]) -> None:
        """Raise ConfigError if another process could not import the workflow, or if it needs what no sandbox has."""
        super().require_isolable(experiment, workflow_class)
        require_no_network(experiment)

    def __init__(self, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> None:
        """Raises ConfigError where the machine has no such sandbox, or the experiment needs what none has."""
        super().__init__(experiment, workflow_class, ambient)
        require_no_network(experiment)
        _refuse_memory_limit(experiment)
        self._door = Door(ambient.base_url)
        address = f"http://127.0.0.1:{door.PORT}{urlsplit(ambient.base_url).path}"
        self._box = Box(self._setup, self._door.path, address, limits_of(experiment.ajet.environment))
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

    def start_worker(self, setup: WorkerSetup, fds: WorkerFds) -> StartedWorker:
        """Start a worker in a sandbox of its own. Raises SandboxFailure."""
        return self._starter.submit(self._box.start, fds).result()


class Box:
    """Makes sandboxes for workers."""

    def __init__(self, setup: WorkerSetup, door: str, base_url: str, limits: Limits) -> None:
        self._setup, self._door, self._base_url, self._limits = setup, door, base_url, limits

    def start(self, fds: WorkerFds) -> StartedWorker:
        """A worker in a new one. Raises SandboxFailure."""
        return self._started(build_worker_command(fds), fds.output, (fds.channel, fds.control))

    def probe(self) -> None:
        """Start a Python in one, which reads the folders and files that it is shown. Raises ConfigError."""
        command = [sys.executable, "-I", "-S", "-c", _PROBE, *self.find_shown().folders]
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
            started.remove()
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
                do=f"install bubblewrap (the system's package, or {format_extra_install('sandbox')}), or use "
                "rollout.isolation: process",
            )

    def _started(self, command: Sequence[str], output: int, passed: tuple[int, ...]) -> StartedWorker:
        told, tells = os.pipe()
        waits, goes = os.pipe()
        more = ["--ro-bind", self._door, DOOR]
        for name, value in self._environment().items():
            more += ["--setenv", name, value]
        more += ["--info-fd", str(tells), "--block-fd", str(waits)]
        given: tuple[int, ...] = ()
        try:
            wall = walled(
                door.__file__, command, self.find_shown(), self._limits, fresh_uid(), more=more, ways=[DOOR],
                told={"door": DOOR},
            )  # fmt: skip
            given = wall.descriptors
            process = subprocess.Popen(
                wall.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={}, cwd="/",
                start_new_session=True, pass_fds=(*passed, *given, tells, waits), user=wall.user, group=wall.user,
                extra_groups=None if wall.user is None else [],
            )  # fmt: skip
        except BaseException as error:
            os.close(told)
            os.close(goes)
            if isinstance(error, OSError):
                raise SandboxFailure(f"bubblewrap cannot be started: {error.strerror}") from error
            raise
        finally:
            for each in (*given, tells, waits):
                os.close(each)
        return self._held(process, told_pid(told, process.pid), goes)

    def _held(self, process: subprocess.Popen[bytes], first: int, goes: int) -> StartedWorker:
        """Hold the process' memory and children to their bounds from before its first program on."""
        group = control_group(self._limits)
        if group is not None:
            try:
                group.take(first)
            except OSError:
                group.remove()
                group = None
        lower_priority(first)
        with suppress(BrokenPipeError):  # it has ended: its output says why
            os.write(goes, b"!")
        os.close(goes)
        gone = group.remove if group is not None else lambda: None
        return StartedWorker(process, gone, self._base_url, sandboxed=True)

    def find_shown(self) -> Shown:
        """Folders of code, as they are now: the project and what else is imported from, but for what Python brings with
        it and whole homes."""
        pythons = (Path(sys.prefix), Path(sys.base_prefix))
        also = [each for each in map(Path, self._setup.paths) if each.is_dir() and not holds_more(each)]
        brought = [each for each in also if any(each.is_relative_to(python) for python in pythons)]
        own = [each for each in also if each not in brought]
        return Shown.of([self._setup.base, *own], [*list_package_roots(), *brought])

    def _environment(self) -> dict[str, str]:
        path = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        paths = os.pathsep.join(filter(None, self._setup.paths))
        return {"PATH": path, "HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "box", "PYTHONPATH": paths,
                "OMP_NUM_THREADS": "1"}  # fmt: skip


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
            remove_folder(self._folder)
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
            remove_folder(self._folder)

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


def _refuse_memory_limit(experiment: Experiment) -> None:
    """Raises ConfigError for a limit that somebody set and that this machine cannot hold for a workflow."""
    layer = experiment.layers.find_winner(_MEMORY)
    if layer is None or layer is experiment.layers.stack[0]:
        return  # ajet's own
    if not _can_hold_memory(limits_of(experiment.ajet.environment)):
        raise ConfigError(
            "A workflow's memory cannot be held on this machine: no control group can be written.",
            where=layer.locate(_MEMORY),
            expected="no environment.sandbox_limits.memory with rollout.isolation: sandbox, or a control group "
            "(version 1 or 2) that this user may write to",
            do="leave the key out, or start the run with `systemd-run --user --scope -p Delegate=yes`",
        )


def _can_hold_memory(limits: Limits) -> bool:
    """True if a control group can be made and a process moved into it."""
    group = control_group(limits)
    if group is None:
        return False
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            group.take(process.pid)
            return True
        except OSError:
            return False
        finally:
            process.kill()
            process.wait()
            group.remove()


def require_no_network(experiment: Experiment) -> None:
    """Raise ConfigError if the experiment needs a network or files that a sandbox does not have."""
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
