"""A task's container: walls around what runs inside, and nothing left of it whatever ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ajet.record.held_folder import HeldFolder, remove_abandoned_folders
from ajet.schema.errors import SandboxFailure
from ajet_containers.container import NAMES, open_engine
from ajet_containers.living import FileBundle, LivingContainer
from ajet_containers.places import ContainerSpec, start_container
from ajet_containers.settings import ContainerLimits
from ajet_containers.tests.harbor_tasks import list_containers
from ajet_sandbox.engine import remove_dead_containers
from tests.support.container_fixtures import IMAGE, unpack_image
from tests.support.sandbox_fixtures import require, run_as_nobody

pytestmark = pytest.mark.extra_slow
LIMITS = ContainerLimits(memory_mb=256, processes=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mounted")


@pytest.fixture(scope="module", params=["podman", "bubblewrap"])
def container(folder: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    require(request.param)
    (folder / "agent").write_text("echo of the agent\n")
    root = unpack_image(tmp_path_factory.mktemp("root")) if request.param == "bubblewrap" else None
    started = start_container(ContainerSpec(request.param, LIMITS, IMAGE, root=root, mounts={str(folder): "/agent"}))
    yield started
    started.close()
    assert list_containers() == [] and not started.is_alive()


def run(container: LivingContainer, script: str, **settings: Any) -> str:
    """Run a Python program inside and return what it printed."""
    ended = asyncio.run(container.run(["python3", "-c", script], environment={}, **settings))
    assert ended.code == 0, ended.stderr
    return ended.stdout.strip()


def test_the_root_is_writable_and_mounts_are_not(container: LivingContainer) -> None:
    ended = asyncio.run(container.run(["sh", "/agent/agent"], environment={}))
    assert ended.stdout == "of the agent\n"
    script = "open('/usr/lib/new', 'w'); print(1)\ntry: open('/agent/new', 'w')\nexcept OSError as e: print(e.strerror)"
    assert run(container, script) == "1\nRead-only file system"


def test_neither_the_machine_nor_the_world_is_reached(container: LivingContainer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        ports = [("127.0.0.1", ours.getsockname()[1]), ("192.0.2.1", 80), ("10.0.2.2", 80)]
        script = (
            "import socket\n"
            f"for place in {ports}:\n"
            " try: socket.create_connection(place, 1); print('reached')\n"
            " except OSError as error: print(error.errno)"
        )
        container.count_network_attempts()
        assert run(container, script).split() == ["111", "101", "101"]
        assert container.count_network_attempts() == 2


def test_only_the_served_port_leads_outside(container: LivingContainer) -> None:
    async def connect() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"from outside: " + await reader.read(100))
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        script = (
            f"import socket; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'hello'); "
            "print(s.recv(100).decode())"
        )
        async with container.serve_gateway(f"http://127.0.0.1:{port}/v1"):
            ended = await container.run(["python3", "-c", script], environment={})
        return ended.stdout.encode()

    assert asyncio.run(connect()) == b"from outside: hello\n"


def test_code_inside_has_no_right_over_the_machine(container: LivingContainer) -> None:
    script = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.unshare(0x20000), libc.setns(0, 0))
for act in (lambda: os.mknod("/device", 0o60600, 0), lambda: open("/proc/sys/kernel/hostname", "w"),
            lambda: open("/sys/kernel/uevent_helper", "w"), lambda: os.listdir("/host")):
    try: act(); print("done")
    except OSError: print("refused")
print(sorted(os.environ))
for folder, _, names in (("/proc", (), ["sysrq-trigger"]), *os.walk("/proc/sys")):
    for path in [f"{folder}/{name}" for name in names]:
        try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)); print("writable:", path)
        except OSError: pass
"""
    lines = run(container, script).splitlines()
    assert lines[:5] == ["-1 -1 -1", "refused", "refused", "refused", "refused"]
    assert lines[6:] == []
    assert set(eval(lines[5])) <= {"HOME", "HOSTNAME", "PATH", "TERM", "container", "LC_CTYPE", "PWD"}


def test_files_go_in_and_out_behind_links_of_the_inside(container: LivingContainer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("of the machine")
    run(container, f"import os; os.symlink({str(tmp_path)!r}, '/trap'); os.mkfifo('/pipe'); os.symlink('/pipe', '/to')")
    bundle = FileBundle()
    bundle.add_file("/trap/outside", b"of the container", 0o640)
    bundle.add_tree(tmp_path, "/tree")
    with pytest.raises(SandboxFailure, match="put"):
        container.put(bundle)  # the link leads to a folder that the container does not have
    assert outside.read_text() == "of the machine" and container.get("/trap/outside", 100) is None
    for path in ("/pipe", "/to", "/usr", "/proc/1/mem"):
        with pytest.raises(ValueError, match="no regular file"):
            container.get(path, 100)
    bundle = FileBundle()
    bundle.add_file("/to", b"instead of the link")
    bundle.add_tree(tmp_path, "/tree")
    container.put(bundle)
    assert (container.get("/to", 100), container.get("/tree/outside", 100)) == (
        b"instead of the link",
        b"of the machine",
    )
    container.remove("/to", "/tree", "/none")
    assert container.get("/to", 100) is container.get("/tree/outside", 100) is None


def test_modules_of_the_container_are_never_imported(container: LivingContainer) -> None:
    library = Path(tarfile.__file__).parent
    script = f"""
import os
for name in ("traceback", "linecache", "tokenize", "bz2", "lzma", "encodings/idna", "pwd", "grp"):
    path = "{library}/" + name + ".py"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write("open('/imported', 'w')")
os.symlink("/nowhere", "/dangling")
"""
    run(container, script)
    bundle = FileBundle()
    bundle.add_file("/dangling/file", b"")
    with pytest.raises(SandboxFailure, match="FileExistsError"):
        container.put(bundle)
    assert container.get("/imported", 100) is None


def test_a_timeout_ends_the_command_and_not_the_container(container: LivingContainer) -> None:
    before = container.count_processes()
    script = "for n in 1 2 3; do sh -c 'sleep 100; true' & done; wait"
    ended = asyncio.run(container.run(["sh", "-c", script], environment={}, timeout=1))
    assert ended.ended_by == "timeout" and container.is_alive() and container.count_processes() == before


def test_output_is_bounded(container: LivingContainer) -> None:
    ended = asyncio.run(container.run(["yes"], environment={}, output=10_000))
    assert ended.ended_by == "output" and len(ended.stdout) == 10_000


def test_variables_of_several_lines_and_no_argument(container: LivingContainer) -> None:
    environment = {"LINES": "one\ntwo", "KEY": "a secret"}
    running = threading.Thread(
        target=lambda: asyncio.run(container.run(["sleep", "2"], environment={"KEY": "a secret key"}))
    )
    running.start()
    time.sleep(1)
    arguments = b"".join(
        Path(f"/proc/{each.pid}/cmdline").read_bytes() for each in psutil.process_iter() if each.is_running()
    )
    running.join()
    assert b"a secret key" not in arguments and b"sleep\x002" in arguments
    ended = asyncio.run(container.run(["sh", "-c", 'echo "$LINES $KEY"'], environment=environment))
    assert ended.stdout == "one\ntwo a secret\n"


def test_an_ordinary_user_has_the_same_container() -> None:
    require("podman")
    found = run_as_nobody("plugins/ajet_containers/tests/rootless_container.py")
    if "lacks" in found:
        pytest.skip(found["lacks"])
    held = found.pop("held")
    assert "memory_mb" not in held or Path("/sys/fs/cgroup/cgroup.controllers").exists()
    assert found == {
        "reached": "8080\n", "written": "of root\n", "changed": True, "ended_by": "timeout", "left": 0,
    }  # fmt: skip


def test_containers_of_a_killed_process_are_swept(folder: Path) -> None:
    require("podman")
    program = (
        "import sys, time\n"
        "from ajet_containers.places import ContainerSpec, start_container\n"
        "from ajet_containers.settings import ContainerLimits\n"
        f"held = start_container(ContainerSpec('podman', ContainerLimits(), image={IMAGE!r}))\n"
        "print(held.pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None and int(started.stdout.readline())
        before = set(list_containers())
        started.send_signal(signal.SIGKILL)
    folders = list(Path(tempfile.gettempdir()).glob("ajet-task-*"))
    for each in (open_engine, remove_dead_containers, remove_abandoned_folders):
        each.cache_clear()
    open_engine("podman")
    HeldFolder(NAMES).remove()
    assert len(before - set(list_containers())) == 1
    assert len(folders) - len(list(Path(tempfile.gettempdir()).glob("ajet-task-*"))) == 1
