"""Every mechanism that this machine can run keeps the contract of a sandbox."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ajet.record.process_identity import ProcessIdentity
from ajet.schema.errors import ConfigError, SandboxFailure
from ajet.schema.frames import FrameError, FrameReader, pack_frame
from ajet.schema.sandbox import Limits, UnsafePathError
from ajet_sandbox import engine as engine_room
from ajet_sandbox.bubblewrap import BubblewrapSandbox
from ajet_sandbox.cgroup import make_control_group
from ajet_sandbox.choose import ENGINES, ExperimentSandboxMaker, open_sandbox, try_mechanism
from ajet_sandbox.engine import LABEL, remove_dead_containers
from ajet_sandbox.landlock import LandlockSandbox, UnconfinedSandbox
from ajet_sandbox.warm import WarmSandbox
from tests.support.container_fixtures import IMAGE, PACKAGE
from tests.support.sandbox_fixtures import require

pytestmark = pytest.mark.slow

PASSWD = Path("/etc/passwd")
LIMITS = Limits(wall=60, cpu=5, memory=256 << 20, processes=32, disk=16 << 20, output=20_000)


DOCKER = pytest.param("docker", marks=pytest.mark.extra_slow)
"""Podman's engine by another command."""


@pytest.fixture(scope="module", params=["bubblewrap", "landlock", "podman", DOCKER, "none"])
def box(request: pytest.FixtureRequest) -> Iterator[WarmSandbox]:
    require(request.param)
    sandbox = open_sandbox(request.param, LIMITS, image=IMAGE if request.param in ENGINES else None)
    yield sandbox
    sandbox.close()


def test_code_has_its_input_its_environment_and_nothing_of_ours(
    box: WarmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AJET_SECRET", "open sesame")
    code = "import os, sys; print(sorted(os.environ), os.environ['ASKED'], sys.stdin.read(), os.getcwd())"
    done = box.python(code, stdin=b"hi", environment={"ASKED": "yes"})
    assert done.good, done
    names, _, rest = done.stdout.decode().partition("]")
    assert rest.split() == ["yes", "hi", box.folder]
    assert "AJET" not in names and "'ASKED'" in names
    assert set(eval(names + "]")) <= {"PATH", "HOME", "TMPDIR", "LANG", "USER", "ASKED"}


def test_commands_and_exit_codes(box: WarmSandbox) -> None:
    done = box.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in")
    assert (done.stdout, done.stderr, done.code, done.ended) == (b"in", b"err\n", 3, "exit")
    assert box.run(["no-such-program"]).code == 127
    assert box.python("import sys; sys.exit('no')").stderr == b"no\n"
    broken = box.python("def f():\n    raise KeyError('x')\nf()")
    assert broken.code == 1 and broken.stderr.startswith(b'Traceback (most recent call last):\n  File "<code>", line 3')


def test_why_a_call_ended(box: WarmSandbox) -> None:
    few = Limits(wall=0.3, cpu=5, output=20_000, disk=LIMITS.disk)
    assert box.python("import time; time.sleep(60)", limits=few).ended == "time"
    loud = box.python("while True: print('x' * 1000)")
    assert loud.ended == "output" and len(loud.stdout) == LIMITS.output
    assert box.python("import os; os.kill(os.getpid(), 15)").ended == "signal"
    assert box.python("print(1)").good


def test_processor_seconds(box: WarmSandbox) -> None:
    if box.mechanism != "landlock":
        pytest.skip("one will do: the limit is set by the same line")
    done = box.python("while True: pass", limits=Limits(wall=600, cpu=1))
    assert done.ended == "time" and 0.9 < done.seconds < 600


def test_state_is_kept_only_for_those_who_ask(box: WarmSandbox) -> None:
    assert box.python("x = 1", keep=True).kept
    assert box.python("print(x)").code == 1
    assert box.python("x += 1; print(x)", keep=True).stdout == b"2\n"
    gone = box.python("import os; os._exit(4)", keep=True)
    assert (gone.code, gone.ended, gone.kept) == (4, "exit", False)
    assert b"NameError" in box.python("print(x)", keep=True).stderr


@pytest.mark.parametrize("calls", [3, pytest.param(1000, marks=pytest.mark.extra_slow)])
def test_nothing_of_a_call_outlives_it(box: WarmSandbox, calls: int) -> None:
    daemon = "import os, time\nfor _ in range(2):\n    if os.fork(): os._exit(0)\n    os.setsid()\ntime.sleep(3600)"
    before = set(psutil.Process().children(recursive=True))
    for _ in range(calls):
        box.python(daemon)
    box.python("x = 1", keep=True)
    box.python(daemon)
    assert box.python("print(x)", keep=True).stdout == b"1\n"
    box.python("raise SystemExit", keep=True)
    left = set(psutil.Process().children(recursive=True)) - before
    assert len(left) <= 1  # the session


def test_files_go_in_and_out_and_never_over_links(box: WarmSandbox) -> None:
    box.put("a/b.txt", b"hello")
    assert box.run(["sh", "-c", "cat a/b.txt; echo more >> a/b.txt"]).stdout == b"hello"
    assert box.read("a/b.txt", 100) == b"hellomore\n" and box.read("a/b.txt", 3) == b"hel"
    box.run(["sh", "-c", "ln -s /etc/passwd link; ln -s / folder; mkfifo pipe; mkdir -p deep"])
    for path in ("link", "folder/etc/passwd", "../x", "/etc/passwd", "pipe", "deep", "a/b.txt/c", ""):
        with pytest.raises(UnsafePathError):
            box.read(path, 10)
    for path in ("link", "folder/tmp/x", "../x"):
        with pytest.raises(UnsafePathError):
            box.put(path, b"x")
    with pytest.raises(FileNotFoundError):
        box.read("none", 10)


def test_a_call_can_be_stopped_from_another_thread(box: WarmSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    send, sent = box.send_frame, threading.Event()

    def sending(frame: bytes) -> None:
        send(frame)
        sent.set()

    def stop() -> None:
        assert sent.wait(60)
        time.sleep(0.3)  # well into it
        box.stop()

    monkeypatch.setattr(box, "send_frame", sending)
    threading.Thread(target=stop).start()
    assert box.python("import time; time.sleep(60)").ended == "stopped"
    assert box.python("print(1)").good


def test_a_stop_that_comes_with_its_call_is_heard(box: WarmSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    send = box.send_frame
    monkeypatch.setattr(box, "send_frame", lambda frame: send(frame + pack_frame({"do": "stop"})))
    assert box.python("import time; time.sleep(60)", limits=Limits(wall=60)).ended == "stopped"
    monkeypatch.undo()
    assert box.python("print(1)").good


def test_a_root_that_is_not_there_is_said_before_anything_is_opened(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(sandbox="auto", sandbox_python=None, sandbox_root="no such image", sandbox_image=None)
    with pytest.raises(ConfigError, match="the folder .* does not exist"):
        ExperimentSandboxMaker.of(config, tmp_path)


@pytest.mark.parametrize(
    "kind", [BubblewrapSandbox, LandlockSandbox, UnconfinedSandbox], ids=lambda kind: kind.mechanism
)
def test_closing_ends_all_and_removes_all(kind: type[WarmSandbox]) -> None:
    require(kind.mechanism)
    box = kind(LIMITS)
    folders = list(box._group.folders) if box._group is not None else []
    running = threading.Thread(target=lambda: results.append(box.run(["sleep", "60"])))
    results: list = []
    running.start()
    while len(tree := psutil.Process(box._process.pid).children(recursive=True)) < (
        2 if kind is BubblewrapSandbox else 1
    ):
        assert running.is_alive(), "the call is over"
        time.sleep(0.01)
    box.close()
    box.close()
    running.join(60)
    assert results[0].ended == "killed"
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in tree)
    assert not any(each.exists() for each in folders)
    assert kind is BubblewrapSandbox or not os.path.exists(box.folder)
    with pytest.raises(SandboxFailure, match="closed"):
        box.python("1")


def test_packages_of_another_python_and_a_root_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bubblewrap"):
        open_sandbox("landlock", LIMITS, root=Path("/"))
    require("bubblewrap")
    box = open_sandbox("bubblewrap", LIMITS, python=sys.executable)
    try:
        assert box.python("import psutil; print(psutil.__file__)").stdout.startswith(b"/packages/0/psutil/")
        assert box.python("import getpass, pwd, os; print(pwd.getpwuid(os.getuid()).pw_name)").stdout == b"box\n"
    finally:
        box.close()
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("this machine's own root, which stands for an image here, has no Python where images have it")
    box = open_sandbox("bubblewrap", LIMITS, root=Path("/"))
    try:
        assert box.python("print(open('/etc/passwd').read())").stdout.decode().strip() == PASSWD.read_text().strip()
        assert box.python("import sys; print(sys.executable)").stdout == b"/usr/bin/python3\n"
    finally:
        box.close()


GROUPS = {
    "version 1": ("4:memory:/a\n8:pids:/b\n0::/\n", ["memory/a", "pids/b"], {
        "memory/a": {"memory.limit_in_bytes": str(256 << 20), "memory.memsw.limit_in_bytes": str(256 << 20)},
        "pids/b": {"pids.max": "34"},
    }),
    "version 2": ("0::/user/me\n", ["user"], {
        "user": {"memory.max": str(256 << 20), "memory.swap.max": "0", "pids.max": "34"},
    }),
    "mixed, controllers in 1": ("4:memory:/\n8:pids:/\n0::/\n", ["memory", "pids", "unified"], {
        "memory": {"memory.limit_in_bytes": str(256 << 20), "memory.memsw.limit_in_bytes": str(256 << 20)},
        "pids": {"pids.max": "34"},
    }),
    "mixed, controllers in 2": ("1:name=systemd:/\n0::/x\n", ["unified/x"], {
        "unified/x": {"memory.max": str(256 << 20), "memory.swap.max": "0", "pids.max": "34"},
    }),
}  # fmt: skip


@pytest.mark.parametrize("layout", GROUPS)
def test_control_groups_of_every_layout(layout: str, tmp_path: Path) -> None:
    """Laid out as the kernel does, in a plain folder: which files get which limits. What the kernel then does with them
    the attacks try, in the layout of this machine."""
    rows, folders, expected = GROUPS[layout]
    (tmp_path / "cgroup").write_text(rows)
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    for place in ("user", "unified/x"):
        if (tmp_path / place).exists():
            (tmp_path / place / "cgroup.subtree_control").write_text("cpu memory pids")
            (tmp_path / place.partition("/")[0] / "cgroup.controllers").write_text("")
    if layout == "version 2":
        (tmp_path / "cgroup.controllers").write_text("")
    left = tmp_path / next(iter(expected)) / "ajet-sandbox-999999999-0"
    left.mkdir()
    made = make_control_group(LIMITS, tmp_path, tmp_path / "cgroup")
    assert made is not None and not left.exists()
    made.add_process(7)
    for folder, values in expected.items():
        (group,) = (tmp_path / folder).glob("ajet-sandbox-*")
        assert {each.name: each.read_text() for each in group.iterdir()} == {**values, "cgroup.procs": "7"}


def test_no_control_group_where_none_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/x\n")
    (tmp_path / "x").mkdir()
    (tmp_path / "cgroup.controllers").write_text("memory pids")
    (tmp_path / "x" / "cgroup.subtree_control").write_text("cpu")
    assert make_control_group(LIMITS, tmp_path, tmp_path / "cgroup") is None
    assert make_control_group(LIMITS, tmp_path, tmp_path / "nothing") is None


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff" * 8, b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\1\0\0\0\0{", b"\0\0\0\x0d\0\0\0\1" + b'{"blobs":[2]}x',
        b"\0\0\0\x0e\0\0\0\1" + b'{"blobs":[-1]}x', (1 << 19).to_bytes(4, "big") + bytes(4) + b"[" * (1 << 19),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    frames = FrameReader(100)
    frames.feed(frame)
    with pytest.raises(FrameError):
        frames.take_frame()
    frames = FrameReader(100)
    for byte in pack_frame({"a": 1}, b"xy", b""):
        assert frames.take_frame() is None
        frames.feed(bytes([byte]))
    assert frames.take_frame() == ({"a": 1, "blobs": [2, 0]}, [b"xy", b""])


@pytest.mark.parametrize("engine", ["podman", DOCKER])
def test_a_container_has_its_images_packages_and_nothing_is_left_of_it(engine: str) -> None:
    require(engine)
    before = containers()
    box = open_sandbox(engine, LIMITS, image=IMAGE)
    try:
        assert box.python(f"import {PACKAGE}; print({PACKAGE}.word)").stdout == b"packed\n"
        assert len(containers()) == len(before) + 1
        with pytest.raises(SandboxFailure, match="was lost"):
            os.kill(box._process.pid, signal.SIGSTOP)  # so that neither its engine's command nor the resident answers
            box.python("import time; time.sleep(60)", limits=Limits(wall=0.1))
    finally:
        box.close()
    assert containers() == before
    why = try_mechanism(engine, "localhost/no-such-image").why
    assert f"localhost/no-such-image is not on this machine (`{engine} pull" in why
    with pytest.raises(ConfigError, match="sandbox_python has no effect with"):
        open_sandbox(engine, LIMITS, python=sys.executable)


_HANGS = """#!/bin/sh
case $1 in
    run) echo 'no space left' >&2; exit 125;;
    rm|image) exec /bin/sleep 60;;
esac
"""


def test_an_engine_that_hangs_is_said_and_hides_no_other_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text(_HANGS)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engine_room, "COMMAND_TIMEOUT_S", 0.3)
    assert "timed out" in try_mechanism("docker").why
    with pytest.raises(SandboxFailure, match="docker does not start: no space left"):
        open_sandbox("docker", LIMITS)


_OPENS = """
import os, signal, sys
from ajet_sandbox.choose import open_sandbox
from ajet.schema.sandbox import Limits
box = open_sandbox("podman", Limits(), image=sys.argv[1])
print(box.python("print(1)").good, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_is_killed_leaves_no_container() -> None:
    """It ends by itself when its line closes; what an engine holds of a process that is gone, the next run removes."""
    require("podman")
    before = containers()
    done = subprocess.run([sys.executable, "-c", _OPENS, IMAGE], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
    until = time.monotonic() + 60
    while containers() != before and time.monotonic() < until:
        time.sleep(0.05)
    assert containers() == before
    with subprocess.Popen(["sleep", "60"]) as ended:
        owner = json.dumps(asdict(ProcessIdentity.of(ended.pid)))
        ended.kill()
    for label in (owner, "somebody else's"):
        subprocess.run(
            ["podman", "create", "--label", f"{LABEL}={label}", IMAGE, "sh"], check=True, capture_output=True
        )
    remove_dead_containers.cache_clear()
    assert remove_dead_containers(shutil.which("podman") or "") == 1
    (left,) = set(containers()) - set(before)
    subprocess.run(["podman", "rm", left], check=True, capture_output=True)


def containers() -> list[str]:
    done = subprocess.run(["podman", "ps", "--all", "--quiet", "--filter", f"label={LABEL}"], capture_output=True)
    return done.stdout.decode().split()
