"""Programs beside a run: started before it, ended after it with all that they started, whatever ends the run."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ajet.commands import supervised_process as kept_process
from ajet.config import Experiment
from ajet.schema.errors import ConfigError, UserError
from ajet_environments.companions import RunningCompanion, WatchedProcess, find_connection_problem, run_companions
from ajet_environments.config import Companion, choose_services
from ajet_environments.confined import ServiceCell
from ajet_sandbox.choose import Trial, choose_mechanism, try_mechanism
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.slow

SERVICE = """
import http.server, os, subprocess, sys
daemon = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
print("pids", os.getpid(), daemon.pid, os.environ["COLOUR"], os.getcwd(), flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
TIMEOUT = subprocess.TimeoutExpired("sleep", 1)
RUN = """
import sys, time
from pathlib import Path
from ajet.config import Experiment
from ajet_environments.companions import run_companions
lake = {"command": sys.argv[1], "ready": "pids", "env": {"COLOUR": "red"}}
experiment = Experiment.from_dict({"ajet": {"services": {"lake": lake}}}, base=Path.cwd())
with run_companions(experiment, Path.cwd()):
    print("ready", flush=True)
    time.sleep(60)
"""


def experiment(base: Path, **services: dict[str, Any]) -> Experiment:
    return Experiment.from_dict({"ajet": {"services": services}}, base=base)


def pids(folder: Path) -> list[int]:
    """The last that it printed."""
    lines = (folder / "services" / "lake.log").read_text().splitlines()
    return [int(word) for word in [line for line in lines if line.startswith("pids")][-1].split()[1:3]]


def words(process: psutil.Process) -> list[str]:
    """Its command line; none of one that has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def service(tmp_path: Path) -> str:
    (tmp_path / "service.py").write_text(SERVICE)
    return f"{sys.executable} -I -S service.py {free_port()}"


def test_it_runs_within_the_block_and_ends_with_its_daemons(tmp_path: Path, service: str) -> None:
    address = f"http://127.0.0.1:{service.rpartition(' ')[2]}"
    lake = {"command": service, "ready": address, "env": {"COLOUR": "red"}}
    runs = tmp_path / "run"
    with run_companions(experiment(tmp_path, lake=lake), runs) as named:
        assert named == "lake of ajet.services"
        started = pids(runs)
        assert all(psutil.pid_exists(pid) for pid in started)
        log = (runs / "services" / "lake.log").read_text()
        assert f"red {tmp_path}" in log
        elsewhere = lake | {"cwd": "nowhere here"}
        with run_companions(experiment(tmp_path, lake=elsewhere), tmp_path / "other", prefix="p") as named:
            assert named == "" and not (tmp_path / "other").exists(), "one that answers already is somebody else's"
        assert all(psutil.pid_exists(pid) for pid in started)
        keeper = psutil.Process(started[0]).parent()
        assert keeper is not None

        def sleeps() -> bool:
            woken = keeper.num_ctx_switches().voluntary
            time.sleep(0.5)
            return keeper.num_ctx_switches().voluntary < woken + 2

        assert any(sleeps() for _ in range(20)), "nobody wants to know what it uses"
    assert all(gone(pid) for pid in started)


def test_one_that_ran_for_longer_than_its_grace_still_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cleans up, once it is asked to end: the folders of an environment, say."""
    monkeypatch.setattr(kept_process, "GRACE_S", 2.0)
    cleans = "trap 'touch cleaned; exit 3' TERM; echo ready; while true; do sleep 0.05; done"
    lake = Companion(command=["/bin/sh", "-c", cleans], ready="ready")
    running = RunningCompanion("lake", lake, tmp_path, tmp_path / "lake.log")
    running.start()
    running.wait_until_ready()
    time.sleep(kept_process.GRACE_S + 0.1)
    running.close()
    assert (tmp_path / "cleaned").exists() and running.describe_exit().startswith(" with code 3")


def test_one_that_is_killed_comes_back(tmp_path: Path, service: str) -> None:
    address = f"http://127.0.0.1:{service.rpartition(' ')[2]}"
    lake = {"command": service, "ready": address, "env": {"COLOUR": "red"}}
    with run_companions(experiment(tmp_path, lake=lake), tmp_path):
        first = pids(tmp_path)
        os.kill(first[0], signal.SIGKILL)
        assert until(lambda: all(gone(pid) for pid in first)), "what it started went with it"
        assert until(lambda: pids(tmp_path) != first and not find_connection_problem(address))
        again = pids(tmp_path)
    assert all(gone(pid) for pid in again)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a keeper has no second process")
@pytest.mark.parametrize("which", [0, 1])
def test_a_keeper_that_is_killed_leaves_nothing_and_the_service_comes_back(
    tmp_path: Path, service: str, which: int
) -> None:
    """Either of the keeper's two processes, with its group."""
    address = f"http://127.0.0.1:{service.rpartition(' ')[2]}"
    lake = {"command": service, "ready": address, "env": {"COLOUR": "red"}}
    with run_companions(experiment(tmp_path, lake=lake), tmp_path):
        first = pids(tmp_path)
        keepers = psutil.Process(first[0]).parents()[:2]
        assert all("keeper.py" in " ".join(each.cmdline()) for each in keepers)
        os.killpg(os.getpgid(keepers[which].pid), signal.SIGKILL)
        assert until(lambda: all(gone(pid) for pid in [*first, *(each.pid for each in keepers)]))
        assert until(lambda: pids(tmp_path) != first and not find_connection_problem(address))
        again = pids(tmp_path)
    assert all(gone(pid) for pid in again)


LOOKS = """
import http.server, json, os, socket, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(json.dumps(found).encode())
    log_message = lambda *_: None
def tried(act):
    try: return str(act())
    except OSError as error: return type(error).__name__
here = os.getcwd()
found = {"here": here, "reads": open("data.txt").read(), "env": open(".env").read(), "shown": open(sys.argv[3]).read(),
    "below": open("sub/.env").read(),
    "writes": tried(lambda: open("new.txt", "w")), "home": tried(lambda: open(os.environ["HOME"] + "/x", "w").name),
    "other": tried(lambda: open(sys.argv[2])), "secret": os.environ.get("SOME_SECRET"), "given": os.environ["GIVEN"],
    "out": tried(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[4])), 5)),
    "processes": len([each for each in os.listdir("/proc") if each.isdigit()])}
print("pids", os.getpid(), 0, flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def test_one_that_is_confined_answers_at_its_port_and_sees_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not try_mechanism("bubblewrap").works:
        pytest.skip("no bubblewrap here")
    made: list[str] = []
    make = tempfile.mkdtemp

    def noted(**of: str) -> str:
        made.append(make(**of))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    monkeypatch.setenv("SOME_SECRET", "of mine")
    home, more = tmp_path / "lake", tmp_path / "more"
    files = {"looks.py": LOOKS, "data.txt": "read", ".env": "KEY=1", "sub/.env": "KEY=2", "../more/book.txt": "shown"}
    for name, text in files.items():
        (home / name).resolve().parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    (tmp_path / "other.txt").write_text("of mine")
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port, elsewhere = free_port(), outside.getsockname()[1]
        command = [sys.executable, "-I", "-S", "looks.py", port, tmp_path / "other.txt", more / "book.txt", elsewhere]
        lake = {
            "command": [*map(str, command)], "cwd": "lake", "ready": f"tcp://localhost:{port}", "env": {"GIVEN": "it"},
            "confined": True, "shows": ["../more"],
        }  # fmt: skip
        before = psutil.Process().children(recursive=True)  # of other tests
        with run_companions(experiment(tmp_path, lake=lake), tmp_path):
            address = f"http://127.0.0.1:{port}"
            with urllib.request.urlopen(address, timeout=60) as answer:
                found = json.load(answer)
            ours = psutil.Process().children(recursive=True)
            keepers = [each for each in ours if any("keeper.py" in word for word in words(each))]
            assert keepers  # bubblewrap, whose variables can be read inside, has those of its keeper
            assert not any("SOME_SECRET" in each.environ() for each in keepers), "bubblewrap gets it from them"
            first = next(each for each in ours if "looks.py" in words(each))
            first.kill()
            assert until(lambda: gone(first.pid) and not find_connection_problem(address)), (
                "it comes back, at the same port"
            )
            left = set(psutil.Process().children(recursive=True)).difference(before)
    assert all(gone(each.pid) for each in left) and find_connection_problem(address)
    assert len(made) == 2 and not any(map(os.path.exists, made))
    assert found.pop("processes") < 8
    here = found.pop("here")
    assert here == str(home) or here.startswith("/shown/"), "a project below /tmp lies apart, with a link to it"
    assert found == {
        "reads": "read", "env": "", "shown": "shown", "writes": "OSError", "home": "/box/x",
        "below": "", "other": "FileNotFoundError", "secret": None, "given": "it", "out": "ConnectionRefusedError",
    }  # fmt: skip


def test_one_that_is_confined_is_not_taken_for_another_that_got_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two runs at once would: a port that nobody listens at may be bound twice."""
    if not try_mechanism("bubblewrap").works:
        pytest.skip("no bubblewrap here")
    port, others, begun = free_port(), [], ServiceCell.start_forwarding

    def late(cell: ServiceCell) -> None:
        others.append(socket.create_server(("127.0.0.1", port)))
        begun(cell)

    monkeypatch.setattr(ServiceCell, "start_forwarding", late)
    (tmp_path / "lake").mkdir()
    command = [sys.executable, "-I", "-S", "-m", "http.server", str(port)]
    lake = {"command": command, "cwd": "lake", "ready": f"tcp://127.0.0.1:{port}", "confined": True}
    found = experiment(tmp_path, lake=lake)
    with pytest.raises(UserError, match="The service lake cannot get its port"), run_companions(found, tmp_path):
        raise AssertionError("the run began")
    others[0].close()


def test_one_whose_log_cannot_be_written_leaves_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not try_mechanism("bubblewrap").works:
        pytest.skip("no bubblewrap here")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary := Path(tempfile.mkdtemp())))
    (tmp_path / "services" / "lake.log").mkdir(parents=True)
    (tmp_path / "lake").mkdir()
    lake = {"command": "sleep 9", "cwd": "lake", "ready": f"tcp://127.0.0.1:{free_port()}", "confined": True}
    with pytest.raises(IsADirectoryError), run_companions(experiment(tmp_path, lake=lake), tmp_path):
        raise AssertionError("the run began")
    assert not [*temporary.iterdir()] and "ajet-service-door" not in {each.name for each in threading.enumerate()}
    temporary.rmdir()


@pytest.mark.parametrize(
    ("lake", "said"),
    [
        ({"ready": "Starting server on"}, "its port is unknown"),
        ({"ready": "http://10.0.0.1:9"}, "its port is unknown"),
        ({"ready": "tcp://127.0.0.1:9", "cwd": str(Path.home())}, "a complete home folder"),
        ({"ready": "tcp://127.0.0.1:9"}, "cannot be created: No sandbox works on this machine: bubblewrap: off"),
        ({"confined": False, "shows": ["x"]}, "only for a confined service"),
    ],
)
def test_one_that_cannot_be_confined_is_refused_by_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("ajet_sandbox.choose.try_mechanism", lambda *_: Trial("bubblewrap", "off"))
    choose_mechanism.cache_clear()
    told = experiment(tmp_path, lake={"command": "sleep 9", "confined": True, **lake})
    with pytest.raises(ConfigError) as caught, run_companions(told, tmp_path):
        raise AssertionError("the run began")
    choose_mechanism.cache_clear()
    assert said in caught.value.what and "services.lake" in caught.value.where


class Ending:
    """A companion that ends at once whenever it is started; if it is `deaf`, when it is closed; if it is `steady`, at
    every second look."""

    name, timeout = "lake", 5.0

    def __init__(self, *, well: bool = False, deaf: bool = False, steady: bool = False) -> None:
        self.starts, self.closed, self.looks = 0, 0, 0
        self._well, self._deaf, self._steady = well, deaf, steady

    def is_over(self) -> bool:
        self.looks += 1
        return self.closed == self.starts if self._deaf else not self._steady or self.looks % 2 == 1

    def has_succeeded(self) -> bool:
        return self._well and (self.starts > 0 or not self._deaf)

    def describe_exit(self) -> str:
        return " with code 3"

    def is_ready(self) -> bool:
        return self._steady

    def restart(self) -> None:
        self.starts += 1

    def close(self) -> None:
        self.closed += 1


def test_one_that_always_ends_is_left_after_some_times() -> None:
    ending = Ending()
    watched, began = WatchedProcess(ending, 2), time.monotonic()
    seen = []
    for tenth in range(100):
        watched.check_process(began + tenth / 10)
        seen.append(ending.starts)
    assert [seen.index(1), seen.index(2), seen[-1]] == [10, 31, 2], "after one second, then after two"
    steady, began = WatchedProcess(ending := Ending(steady=True), 1), time.monotonic()
    for minute in range(0, 60, 2):
        steady.check_process(began + 60 * minute)
    assert ending.starts == 10, "one that was ready for a minute counts anew"
    done = WatchedProcess(well := Ending(well=True), 2)
    for second in range(100):
        done.check_process(began + second)
    assert well.starts == 0
    slow = WatchedProcess(deaf := Ending(deaf=True, well=True), 2)
    deaf.timeout = 100.0
    for second in range(1000):
        slow.check_process(began + second)
    assert (deaf.starts, deaf.closed) == (2, 2), "one that is not ready in time is ended, and has not run a minute"


@pytest.mark.parametrize("problem", [UserError("no folder"), OSError(24, "Too many open files")])
def test_one_that_cannot_be_started_is_left_and_the_others_are_looked_after(problem: Exception) -> None:
    ending, began = Ending(), time.monotonic()

    def restart() -> None:
        ending.starts += 1
        raise problem

    ending.restart = restart  # type: ignore[method-assign]
    watched = WatchedProcess(ending, 3)
    for second in range(100):
        watched.check_process(began + second)
    assert ending.starts == 1


def test_how_one_ended_that_took_too_long_to_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then its descriptor may be another file's."""
    lake = RunningCompanion("lake", Companion(command=["sleep", "60"]), tmp_path, tmp_path / "lake.log")
    lake.start()
    keeper, report = lake.keeper, lake.report
    assert keeper is not None and report is not None
    with monkeypatch.context() as patch:
        patch.setattr(type(keeper), "wait", lambda self, timeout=None: (_ for _ in ()).throw(TIMEOUT))
        lake.close()
    keeper.wait(60)
    assert (
        lake.is_over()
        and not lake.has_succeeded()
        and (said := lake.describe_exit()) in (" with code -15", " with code -9")
    )
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(report)
    lake.close()
    assert lake.describe_exit() == said


def test_one_that_is_started_in_a_busy_run_is_looked_after(tmp_path: Path) -> None:
    """Its report comes on a descriptor above those that select takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if -1 < hard < 1200:
        pytest.skip("no such descriptors here")
    lake = RunningCompanion("lake", Companion(command=["sleep", "60"]), tmp_path, tmp_path / "lake.log")
    lake.start()
    low = lake.report
    assert low is not None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
        lake.report = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.close(low)
    lake.close()
    assert lake.is_over() and lake.describe_exit().startswith(" with code -")


def test_of_a_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    script = "import sys; print('x' * (1 << 17) + '\\nthe last\\n', flush=True); sys.exit(3)"
    lake = RunningCompanion("lake", Companion(command=[sys.executable, "-c", script]), tmp_path, tmp_path / "lake.log")
    lake.start()
    assert until(lake.is_over)
    assert lake.describe_exit() == " with code 3 (the last)" and len(lake.last_lines()[0]) < 1 << 16


def test_of_its_log_only_what_is_new_is_read(tmp_path: Path) -> None:
    log = tmp_path / "lake.log"
    lake = RunningCompanion("lake", Companion(command="x", ready="ready"), tmp_path, log)
    log.write_text("starting " * 100)
    assert not lake.is_ready()
    log.write_text("ready".ljust(899) + "r")
    assert not lake.is_ready()
    with log.open("a") as more:
        more.write("eady")
    assert lake.is_ready(), "it came in two parts"


def test_a_log_may_be_shortened_while_it_is_written(tmp_path: Path) -> None:
    """As `logrotate` does it with `copytruncate`: no hole is left where the old lines were."""
    command = ["sh", "-c", "echo ready; while [ ! -e on ]; do sleep 0.02; done; echo more; exec sleep 60"]
    lake = {"command": command, "ready": "ready"}
    with run_companions(experiment(tmp_path, lake=lake), tmp_path):
        log = tmp_path / "services" / "lake.log"
        os.truncate(log, 0)
        (tmp_path / "on").touch()
        assert until(lambda: log.stat().st_size > 0)
        assert log.read_bytes() == b"more\n"


def test_it_ends_where_the_run_is_killed(tmp_path: Path, service: str) -> None:
    (tmp_path / "run.py").write_text(RUN)
    paths = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "run.py", service]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, env=paths) as run:
        assert run.stdout is not None and run.stdout.readline() == b"ready\n"
        started = pids(tmp_path)
        assert not any(gone(pid) for pid in started)
        run.send_signal(signal.SIGKILL)
    assert until(lambda: all(gone(pid) for pid in started))


@pytest.mark.parametrize(
    ("lake", "said"),
    [
        ({"command": "no-such-program --x", "ready": "x"}, "ended before it was ready: FileNotFoundError"),
        (
            {"command": [sys.executable, "-I", "-S", "-c", "print('boom'); raise SystemExit(3)"], "ready": "x"},
            "with code 3",
        ),
        ({"command": "sleep 9", "ready": "tcp://127.0.0.1:9", "timeout": 0.3}, "was not ready within 0.3 s"),
        ({"command": "sleep 9", "cwd": "nowhere"}, "does not exist"),
        ({}, "has no command"),
    ],
)
def test_one_that_is_not_ready_is_an_error_and_nothing_stays(tmp_path: Path, lake: dict[str, Any], said: str) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(UserError) as caught, run_companions(experiment(tmp_path, lake=lake), tmp_path):
        raise AssertionError("the run began")
    assert said in caught.value.what and "services.lake" in caught.value.where
    assert "code 3" not in said or "boom" in caught.value.where
    assert until(lambda: {child.pid for child in psutil.Process().children(recursive=True)} <= before)


def test_which_are_started(tmp_path: Path) -> None:
    lake, world = {"command": "lake"}, {"command": "world", "only_with_flag": True}
    found = experiment(tmp_path, lake=lake, world=world)
    assert [*choose_services(found, [], {})] == ["lake"] and [*choose_services(found, ["world"], {})] == [
        "lake",
        "world",
    ]
    theirs = choose_services(found, ["appworld"], {"APPWORLD_PATH": "/opt/appworld", "APPWORLD_SCRIPT": "bash run.sh"})
    agentjets = theirs["appworld"]
    assert (agentjets.command, agentjets.cwd) == (["/bin/bash", "-c", "bash run.sh"], "/opt/appworld")
    assert agentjets.ready == "Starting server on"
    with pytest.raises(UserError, match="There is no service bfcl") as caught:
        choose_services(found, ["bfcl"], {"BFCL_PATH": "/opt"})
    assert "BFCL_SCRIPT" in caught.value.expected and "lake, world" in caught.value.expected


def test_a_wrong_key_of_one_says_where(tmp_path: Path) -> None:
    from ajet.config import load_experiment

    (tmp_path / "x.yaml").write_text("ajet:\n  services:\n    lake: {command: x, timeout: -1}\n")
    with pytest.raises(ConfigError, match="ajet.services.lake.timeout is -1") as caught:
        load_experiment(tmp_path / "x.yaml")
    assert caught.value.expected == "number, above 0" and "x.yaml:3:" in caught.value.where


def test_what_a_run_stands_on_is_asked_at_once_and_what_is_down_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ajet.commands import services
    from ajet.config.services import RequiredService

    asked, over = [threading.Event() for _ in range(3)], threading.Event()

    def there(seconds: float) -> str:
        return "" if all(each.wait(60) for each in asked) else "the others were not asked meanwhile"

    def hangs(number: int) -> Callable[[float], str]:
        def ask(seconds: float) -> str:
            asked[number].set()
            over.wait(60)
            return ""

        return ask

    some = [RequiredService(f"thing {n}", "x", "k", hangs(n - 1) if n else there, "e", "d") for n in range(4)]
    clock = iter([0.0, 0.0, 60.0, 60.0, 60.0])  # a minute passes once the first has answered
    with monkeypatch.context() as patch:
        patch.setattr(services, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        assert [why for _, why in services.check_services(some, within=60)] == ["", *["no answer within 60 s"] * 3]
    over.set()
    tree = {
        "task_reader": {"type": "env_service", "env_service": {"env_url": "http://127.0.0.1:9"}},
        "rollout": {"engine": "endpoint", "endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}},
    }
    with pytest.raises(UserError) as caught:
        services.require_services(Experiment.from_dict({"ajet": tree}, base=tmp_path))
    assert caught.value.what.startswith("2 services cannot be reached:")
    for words in ("environment service at http://127.0.0.1:9: ", "env_url", "model server", "rollout.endpoint", "do "):
        assert words in caught.value.what
