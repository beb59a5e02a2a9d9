"""`rollout.isolation: sandbox`: each attempt's workflow runs in a worker process inside its own bubblewrap sandbox.

Invariants: the sandbox shows the machine's programs, the current Python, the project folder and other import folders,
all read-only, and an empty working folder. No environment variable and no other process is accessible, and of the
network only the gateway (ajet's model server), over a Unix socket called the door. A sandbox is never reused by another
attempt: all its processes and files end with it.
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

from ajet.config.locations import find_cache_root
from ajet.config.plugins import list_package_roots
from ajet.record.remove_folder import remove_folder
from ajet.rollout.isolation.messages import WorkerSetup
from ajet.rollout.isolation.process import ProcessIsolation
from ajet.rollout.isolation.worker_process import StartedWorker, WorkerFds, build_worker_command, lower_priority
from ajet.schema.commands import format_extra_install
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import ConfigError, SandboxFailure
from ajet.schema.sandbox import Limits
from ajet_sandbox.bubblewrap import FOLDER, read_child_pid
from ajet_sandbox.cgroup import make_control_group
from ajet_sandbox.choose import build_limits
from ajet_sandbox.doorway import BACKLOG, listen_at, remove_dead_doors, run_until_closed
from ajet_sandbox.identity import choose_uid
from ajet_sandbox.inside import door
from ajet_sandbox.walls import ShownFolders, holds_home, wall_command

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
"""Lists folders and opens single files: of a virtual environment, `pyvenv.cfg` is shown by itself."""


class SandboxIsolation(ProcessIsolation):
    """Starts one sandboxed worker process per attempt."""

    keeps_workers = False

    @classmethod
    def require_isolable(cls, experiment: Experiment, workflow_class: type[Any]) -> None:
        """Raise ConfigError if the workflow cannot run in another process, or needs the network."""
        super().require_isolable(experiment, workflow_class)
        require_no_network(experiment)

    def __init__(self, experiment: Experiment, workflow_class: type[Any], ambient: Endpoint) -> None:
        """Open the socket through which sandboxes reach the gateway, and test one sandbox.

        Args:
            ambient: the gateway's endpoint on the host.

        Raises:
            ConfigError: the machine has no such sandbox, or the experiment needs more than a sandbox offers.
        """
        super().__init__(experiment, workflow_class, ambient)
        require_no_network(experiment)
        _refuse_memory_limit(experiment)
        self._door = GatewayDoor(ambient.base_url)
        address = f"http://127.0.0.1:{door.PORT}{urlsplit(ambient.base_url).path}"
        self._box = WorkerSandbox(self._setup, self._door.path, address, build_limits(experiment.ajet.environment))
        self._start_thread = ThreadPoolExecutor(1, thread_name_prefix="ajet-sandbox")
        """bubblewrap ends with its starting thread, so all starts share a permanent thread."""
        try:
            self._start_thread.submit(self._box.probe_sandbox).result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all workers and close the socket to the gateway."""
        super().close()
        self._door.close()

    def start_worker(self, setup: WorkerSetup, fds: WorkerFds) -> StartedWorker:
        """Start a worker in its own sandbox. Raises SandboxFailure."""
        return self._start_thread.submit(self._box.start_worker, fds).result()


class WorkerSandbox:
    """Builds the sandbox of a worker process and starts the worker in it.

    The constructor takes the worker's setup, the path of the gateway's socket, the gateway's URL inside, and the
    limits.
    """

    def __init__(self, setup: WorkerSetup, door: str, base_url: str, limits: Limits) -> None:
        self._setup = setup
        self._door = door
        self._base_url = base_url
        self._limits = limits

    def start_worker(self, fds: WorkerFds) -> StartedWorker:
        """Start a worker in a new sandbox. Raises SandboxFailure.

        Args:
            fds: descriptors of the worker's channel, control pipe and output.
        """
        return self._start_process(build_worker_command(fds), fds.output, (fds.channel, fds.control))

    def probe_sandbox(self) -> None:
        """Test that Python starts in a sandbox and can read all shown folders. Raises ConfigError."""
        command = [sys.executable, "-I", "-S", "-c", _PROBE, *self.find_shown().folders]
        read_end, write_end = os.pipe()
        output = ""
        try:
            try:
                started = self._start_process(command, write_end, ())
            finally:
                os.close(write_end)
            try:
                started.process.wait(_PROBE_S)
            except subprocess.TimeoutExpired:
                started.process.kill()
                started.process.wait()
            started.remove()
            os.set_blocking(read_end, False)
            with suppress(BlockingIOError):
                output = os.read(read_end, 4000).decode(errors="replace").strip()
        except SandboxFailure as problem:
            output = str(problem)
        finally:
            os.close(read_end)
        if output != "ready":
            raise ConfigError(
                "The sandbox for workflows does not work on this machine: "
                f"{output.splitlines()[-1] if output else 'it does not start'}.",
                where=KEY,
                expected="bubblewrap, and user namespaces or root; folders of code that the sandbox's user can read",
                do=f"install bubblewrap (the system's package, or {format_extra_install('sandbox')}), or use "
                "rollout.isolation: process",
            )

    def _start_process(self, command: Sequence[str], output: int, passed: tuple[int, ...]) -> StartedWorker:
        """Start a command in a new sandbox, under the limits and with the door to the gateway.

        The process inside waits (`--block-fd`) until it is in its control group.

        Args:
            output: descriptor of the process's standard output and error.
            passed: further descriptors that the process inherits.

        Raises:
            SandboxFailure: the sandbox cannot be started.
        """
        pid_read, pid_write = os.pipe()
        block_read, block_write = os.pipe()
        bubblewrap_args = ["--ro-bind", self._door, DOOR]
        for name, value in self._build_environment().items():
            bubblewrap_args += ["--setenv", name, value]
        bubblewrap_args += ["--info-fd", str(pid_write), "--block-fd", str(block_read)]
        wall_fds: tuple[int, ...] = ()
        try:
            program = wall_command(
                door.__file__, command, self.find_shown(), self._limits, choose_uid(),
                more=bubblewrap_args, ways=[DOOR], settings={"door": DOOR},
            )  # fmt: skip
            wall_fds = program.descriptors
            process = subprocess.Popen(
                program.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={}, cwd="/",
                start_new_session=True, pass_fds=(*passed, *wall_fds, pid_write, block_read),
                user=program.user, group=program.user, extra_groups=None if program.user is None else [],
            )  # fmt: skip
        except BaseException as error:
            os.close(pid_read)
            os.close(block_write)
            if isinstance(error, OSError):
                raise SandboxFailure(f"bubblewrap cannot be started: {error.strerror}") from error
            raise
        finally:
            for fd in (*wall_fds, pid_write, block_read):
                os.close(fd)
        return self._hold_process(process, read_child_pid(pid_read, process.pid), block_write)

    def _hold_process(self, process: subprocess.Popen[bytes], first_pid: int, block_write: int) -> StartedWorker:
        """Apply memory limit and priority to a sandbox that waits for a byte on `block_write`, then release it.

        Args:
            process: the started bubblewrap.
            first_pid: host's id of the first process inside.
            block_write: descriptor of the pipe on which the sandbox waits; closed here.
        """
        group = make_control_group(self._limits)
        if group is not None:
            try:
                group.add_process(first_pid)
            except OSError:
                group.remove()
                group = None
        lower_priority(first_pid)
        with suppress(BrokenPipeError):  # the process has ended, and its output says why
            os.write(block_write, b"!")
        os.close(block_write)
        remove_group = group.remove if group is not None else lambda: None
        return StartedWorker(process, remove_group, self._base_url, sandboxed=True)

    def find_shown(self) -> ShownFolders:
        """Return the folders to show: the project and other import folders, except those with home folders."""
        pythons = (Path(sys.prefix), Path(sys.base_prefix))
        import_folders = [
            folder for folder in map(Path, self._setup.paths) if folder.is_dir() and not holds_home(folder)
        ]
        installed_folders = [
            folder for folder in import_folders if any(folder.is_relative_to(python) for python in pythons)
        ]
        project_folders = [folder for folder in import_folders if folder not in installed_folders]
        return ShownFolders.of(
            [self._setup.base, *project_folders], [*list_package_roots(), *installed_folders, *_list_installed()]
        )

    def _build_environment(self) -> dict[str, str]:
        """Return the environment variables of the process inside: search paths, folders, and one thread for BLAS."""
        program_path = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        import_paths = os.pathsep.join(filter(None, self._setup.paths))
        cache = {"AJET_CACHE": str(find_cache_root().absolute())} if _list_installed() else {}
        return {"PATH": program_path, "HOME": FOLDER, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "box",
                "PYTHONPATH": import_paths, "OMP_NUM_THREADS": "1", **cache}  # fmt: skip


def _list_installed() -> list[Path]:
    """Return the folders of the cache with programs that agents run."""
    folders = [find_cache_root().absolute() / name for name in ("harness", "python")]
    return [folder for folder in folders if folder.is_dir()]


class GatewayDoor:
    """Forwards a Unix socket in a temporary folder to the gateway, in a thread of the host process."""

    def __init__(self, base_url: str) -> None:
        address = urlsplit(base_url)
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 80
        remove_dead_doors(_FOLDERS, "gateway")
        self._folder = tempfile.mkdtemp(prefix=_FOLDERS)
        os.chmod(self._folder, 0o711)  # a sandbox's own user may enter the folder, but not list it
        self.path = f"{self._folder}/gateway"
        try:
            listener = _open_socket(self.path)
        except OSError as error:
            remove_folder(self._folder)
            raise ConfigError(
                f"The socket to the gateway cannot be created at {self.path}: {error}.",
                where=KEY,
                do="set TMPDIR to a folder with a shorter path",
            ) from error
        self._loop, self._is_closing = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._serve_connections, args=(listener,), name="ajet-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop forwarding and remove the folder. Idempotent."""
        if not self._loop.is_closed():
            with suppress(RuntimeError):  # the thread has just closed its loop
                self._loop.call_soon_threadsafe(self._is_closing.set)
            self._thread.join()
            remove_folder(self._folder)

    def _serve_connections(self, listener: socket.socket) -> None:
        """Forward connections of the listening socket to the gateway until `close`, in this thread."""

        async def connect() -> door.Streams:
            return await asyncio.open_connection(self._host, self._port)

        async def until_closed() -> None:
            """Accept connections until `close`, which may have been called already."""
            forward = door.make_forwarder(connect)
            server = await asyncio.start_unix_server(forward, sock=listener, backlog=BACKLOG)
            await self._is_closing.wait()
            server.close()

        run_until_closed(self._loop, until_closed())
        self._loop.close()


def _open_socket(path: str) -> socket.socket:
    """Return a listening Unix socket at the path that every user can connect to. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listen_at(path, listener)
        os.chmod(path, 0o666)
    except OSError:
        listener.close()
        raise
    return listener


def _refuse_memory_limit(experiment: Experiment) -> None:
    """Raise ConfigError if the YAML sets a memory limit that this machine cannot enforce on a workflow."""
    layer = experiment.layers.find_winner(_MEMORY)
    if layer is None or layer is experiment.layers.stack[0]:
        return  # the limit is ajet's default, not configured
    if not _can_hold_memory(build_limits(experiment.ajet.environment)):
        raise ConfigError(
            "The memory of a workflow cannot be limited on this machine: no control group is writable.",
            where=layer.locate(_MEMORY),
            expected="no environment.sandbox_limits.memory with rollout.isolation: sandbox, or a control group "
            "(version 1 or 2) that this user may write to",
            do="remove the key, or start the run with `systemd-run --user --scope -p Delegate=yes`",
        )


def _can_hold_memory(limits: Limits) -> bool:
    """True if this machine lets ajet create a control group and move a process into it."""
    group = make_control_group(limits)
    if group is None:
        return False
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            group.add_process(process.pid)
            return True
        except OSError:
            return False
        finally:
            process.kill()
            process.wait()
            group.remove()


def require_no_network(experiment: Experiment) -> None:
    """Raise ConfigError if the experiment needs the network, or its project folder contains a home folder."""
    settings = experiment.ajet
    key = "environment.use" if settings.environment.use else ""
    if settings.task_reader.type == "env_service":
        key = "task_reader.type: env_service"
    if key:
        raise ConfigError(
            f"ajet.{key} needs the network, which a workflow in a sandbox does not have.",
            where=KEY,
            do="use rollout.isolation: process, and `tuner.sandbox()` for model-written code",
        )
    base = experiment.base
    if holds_home(base):
        raise ConfigError(
            f"The project folder {base} contains a complete home folder, which a sandbox must not read.",
            where=KEY,
            do="move the YAML and its code to a separate folder",
        )
