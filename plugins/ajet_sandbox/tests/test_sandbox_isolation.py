"""`rollout.isolation: sandbox`: a whole workflow plays behind walls, and nothing of it is left. What it promises like
every other isolation is in test_isolations.py."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ajet.config import Experiment, resolve_reference
from ajet.config.plugins import list_package_roots
from ajet.rollout.isolation.messages import WorkerSetup
from ajet.schema.endpoint import Endpoint
from ajet.schema.errors import ConfigError
from ajet.schema.sandbox import Limits
from ajet_sandbox import isolation as sandbox
from ajet_sandbox import walls
from ajet_sandbox.identity import choose_uid
from tests.support.rollouts import stage, time_is_up
from tests.support.sandbox_fixtures import require
from tests.support.waiting import until

pytestmark = pytest.mark.slow

FLOW = """
import json, os, socket, subprocess, sys, time
from pathlib import Path
from ajet import Workflow, WorkflowOutput

HERE = Path(__file__).parent
COMMAND = '''
import json, os, urllib.request
asked = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), headers)) as reply:
    print(json.load(reply)["choices"][0]["message"]["content"])
'''

def connected(*address):
    family = socket.AF_UNIX if len(address) == 1 else socket.AF_INET
    with socket.socket(family) as guest:
        guest.settimeout(3)
        guest.connect(address[0] if len(address) == 1 else address)
        return "connected"

class LooksAround(Workflow):
    def execute(self, task, tuner):
        told = json.loads((HERE / "told.json").read_text())
        found = {"before": os.listdir("."), "secret": [name for name in os.environ.values() if told["secret"] in name]}
        def attempt(name, call):
            try:
                found[name] = str(call())
            except OSError as error:
                found[name] = type(error).__name__
        attempt("outside", lambda: Path(told["file"]).read_text())
        attempt("keys", lambda: (HERE / ".env").read_text() + (HERE / "a" / "b" / ".env.local").read_text())
        attempt("project", lambda: (HERE / "new").touch())
        attempt("system", lambda: Path("/usr/new").touch())
        attempt("loopback", lambda: connected("127.0.0.1", told["port"]))
        attempt("abroad", lambda: connected("192.0.2.1", 80))
        attempt("socket", lambda: connected(told["socket"]))
        found["processes"] = len([name for name in os.listdir("/proc") if name.isdecimal()])
        Path("left").write_text("of this attempt")
        with tuner.tool("look", {"at": "door"}) as running:
            running.result = "shut"
        said = subprocess.run([sys.executable, "-I", "-c", COMMAND], capture_output=True, text=True)
        print("looked around", said.stderr[-500:])
        return WorkflowOutput(metadata={"answer": said.stdout.strip(), **found})

class Hangs(Workflow):
    def execute(self, task, tuner):
        subprocess.Popen(["sleep", "654.321"], start_new_session=True)
        subprocess.run([sys.executable, "-I", "-c", COMMAND], check=True, stdout=subprocess.DEVNULL)
        while True:
            try:
                time.sleep(600)
            except BaseException:
                continue
"""

SEES = """
import os
from ajet import Workflow, WorkflowOutput

class Sees(Workflow):
    def execute(self, task, tuner):
        files = ["pyvenv.cfg", "bin/python"]
        return WorkflowOutput(reward=1.0, metadata={"here": [os.path.lexists(f"PREFIX/{file}") for file in files]})
"""


IMPORTS = """
import ajet_proof.plugin, ajet_sandbox.plugin
from ajet import Workflow, WorkflowOutput

class Imports(Workflow):
    def execute(self, task, tuner):
        names = [ajet_proof.plugin.__name__, ajet_sandbox.plugin.__name__]
        return WorkflowOutput(reward=1.0, metadata={"names": names})
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    require("bubblewrap")
    others = [entry for entry in sys.path if Path(entry).is_relative_to(tmp_path.parent)]  # which nobody else may read
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in others])
    folder = tmp_path / "project"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    (folder / "flow.py").write_text(FLOW)
    return folder


def play(project: Path, name: str, **options: Any) -> Any:
    reference = f"flow.py->{name}"
    workflow = resolve_reference(reference, base=project)
    return stage(workflow, isolation="sandbox", folder=project, user_workflow=reference, num_repeat=1, **options)


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """What listens on this machine."""
    path = str(tmp_path / "socket")
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(path)
        unix.listen()
        Path(path).chmod(0o777)
        yield tcp.getsockname()[1], path


def test_a_workflow_plays_and_nothing_of_this_machine_is_within_its_reach(
    project: Path, sockets: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "a-secret-of-the-trainer"
    monkeypatch.setenv("AJET_TEST_TOKEN", secret)
    file = project.parent / "keys"
    file.write_text(secret)
    file.chmod(0o600)
    (project / ".env").write_text(f"KEY={secret}")
    (project / "a" / "b").mkdir(parents=True)
    (project / "a" / "b" / ".env.local").write_text(f"KEY={secret}")
    port, path = sockets
    (project / "told.json").write_text(json.dumps({"file": str(file), "port": port, "socket": path, "secret": secret}))
    with play(project, "LooksAround") as made:
        episode = made.episode()
        assert until(lambda: not _running("inside/door.py"))
    assert episode.failure is None, (episode.failure, episode.printed)
    found = {name: episode.metadata.pop(name) for name in list(episode.metadata)}
    assert found.pop("processes") < 12
    assert found == {
        "answer": "yes", "before": [], "secret": [], "outside": "FileNotFoundError", "keys": "", "project": "OSError",
        "system": "OSError", "loopback": "ConnectionRefusedError", "abroad": "OSError", "socket": "FileNotFoundError",
    }  # fmt: skip
    assert episode.printed == "looked around \n" and len(episode.calls) == 1 and episode.timelines
    assert [(use.name, use.result) for use in episode.tool_uses] == [("look", "shut")]


def test_environment_outside_the_project_starts_sandboxes(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip install` into a virtual environment far from the project: no folder on the path holds the environment."""
    environment = project.parent / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch(mode=0o644)
    (environment / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "prefix", str(environment))
    (project / "flow.py").write_text(SEES.replace("PREFIX", str(environment)))
    with play(project, "Sees") as made:
        episode = made.episode()
    assert episode.metadata.get("here") == [True, True], (episode.failure, episode.printed)


def test_a_workflow_imports_code_of_plugins(project: Path) -> None:
    (project / "flow.py").write_text(IMPORTS)
    with play(project, "Imports") as made:
        episode = made.episode()
    assert episode.metadata.get("names") == ["ajet_proof.plugin", "ajet_sandbox.plugin"], episode.failure


def test_every_package_of_ajet_is_shown(tmp_path: Path) -> None:
    """Its folders alone, where no folder on the path holds them."""
    address = Endpoint("http://127.0.0.1:9/v1", "")
    box = sandbox.WorkerSandbox(WorkerSetup("flow.py->W", tmp_path, (), address), "", "", Limits())
    shown = [Path(each) for each in box.find_shown().folders]
    names = {each.name for each in list_package_roots()}
    assert {"ajet", "ajet_sandbox", "ajet_verl"} <= names
    for root in list_package_roots():
        assert any(root.is_relative_to(each) for each in shown), root


@pytest.mark.extra_slow
def test_a_hang_is_killed_with_all_that_it_started(project: Path) -> None:
    stages: list[Any] = []
    with time_is_up(lambda: bool(stages and stages[0].engine.requests)), play(project, "Hangs") as made:
        stages.append(made)
        episode = made.episode()
        assert episode.failure is not None and episode.failure.kind == "timeout"
        assert until(lambda: made.rollout.abandoned_count == 0)
        assert until(lambda: not _running("654.321") and not _below("inside/door.py"))


@pytest.mark.extra_slow
def test_no_attempt_meets_what_another_left(project: Path) -> None:
    told = {"file": "/nowhere", "port": 9, "socket": "/nowhere", "secret": "none"}
    (project / "told.json").write_text(json.dumps(told))
    with play(project, "LooksAround", max_env_worker=1) as made:
        episodes = [episode for group in made.play(2) for episode in group.episodes]
    assert [(episode.failure, episode.metadata["before"]) for episode in episodes] == [(None, [])] * 2


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for that of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="k"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.extra_slow
def test_a_killed_run_leaves_no_sandbox(project: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom ajet_sandbox.tests.test_sandbox_isolation import play\n"
        "with play(Path(sys.argv[1]), 'Hangs', episode_timeout=None) as made: made.play(1)\n"
    )
    environment = {**os.environ, "TMPDIR": str(short)}  # what it leaves there, the next run would remove
    run = subprocess.Popen([sys.executable, "-c", program, str(project)], env=environment)
    try:
        assert until(lambda: _running("654.321"))
        its = psutil.Process(run.pid).children(recursive=True)
    finally:
        run.kill()
        run.wait()
    assert its and until(lambda: not any(one.is_running() for one in its) and not _running("654.321"))
    (left,) = short.glob("ajet-door-*")
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    other = sandbox.GatewayDoor("http://127.0.0.1:9/v1")
    assert not left.exists()
    other.close()


def _below(word: str) -> bool:
    """Whether a process that descends from this one has the word; other workers have sandboxes, too."""
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if word in " ".join(each.cmdline()):
                return True
    return False


def _running(word: str) -> bool:
    return any(word in " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))


class Never:
    """A workflow."""


def opened(base: Path, tree: dict[str, Any]) -> Callable[[], Any]:
    rollout = {"user_workflow": "flow.py->Never", "isolation": "sandbox"}
    experiment = Experiment.from_dict({"ajet": {**tree, "rollout": rollout}}, base=base)
    ambient = Endpoint("http://127.0.0.1:9/v1", "key")
    return lambda: sandbox.SandboxIsolation.create(experiment, Never, ambient)


def test_what_the_machine_or_the_experiment_lacks_is_said_at_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="environment.use needs the network"):
        opened(tmp_path, {"environment": {"use": "http://127.0.0.1:9/mcp"}})()
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="contains a complete home folder"):
        patch.setenv("HOME", str(tmp_path / "me"))
        opened(tmp_path, {})()
    monkeypatch.setattr(walls, "find_bubblewrap", lambda: None)
    with pytest.raises(ConfigError, match="does not work on this machine: bubblewrap is not installed"):
        opened(tmp_path, {})()


def test_memory_limit_that_cannot_be_held_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "make_control_group", lambda limits: None)
    with pytest.raises(ConfigError, match="no control group") as refused:
        opened(tmp_path, {"environment": {"sandbox_limits": {"memory": 300}}})()
    assert "experiment.yaml:" in refused.value.where and "sandbox_limits.memory" in (refused.value.expected or "")
    monkeypatch.setattr(walls, "find_bubblewrap", lambda: None)
    for own in ({}, {"environment": {"sandbox_limits": {"processes": 20}}}):
        with pytest.raises(ConfigError, match="bubblewrap is not installed"):
            opened(tmp_path, own)()


def test_a_project_folder_that_its_user_cannot_read_is_said_at_launch(tmp_path: Path) -> None:
    require("bubblewrap")
    if choose_uid() is None:
        pytest.skip("sandboxes have no user of their own here")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ConfigError, match=f"does not work on this machine: PermissionError.*{closed}"):
        opened(closed, {})()


def test_a_folder_for_sockets_with_too_long_a_name_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(ConfigError, match="socket to the gateway cannot be created") as refused:
        sandbox.GatewayDoor("http://127.0.0.1:1/v1")
    assert "TMPDIR" in refused.value.do and list(long.iterdir()) == []


def test_a_door_that_is_being_made_is_not_swept_away_by_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    listen = socket.socket.listen

    def listens(one: socket.socket, backlog: int) -> None:
        if one.family == socket.AF_UNIX:
            sandbox.remove_dead_doors(sandbox._FOLDERS, "gateway")  # as another process that begins now
        listen(one, backlog)

    monkeypatch.setattr(socket.socket, "listen", listens)
    door = sandbox.GatewayDoor("http://127.0.0.1:1/v1")
    assert Path(door.path).exists()
    door.close()


def test_a_door_that_is_shut_before_somebody_in_it_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gateway, socket.socket(socket.AF_UNIX) as guest:
        door = sandbox.GatewayDoor(f"http://127.0.0.1:{gateway.getsockname()[1]}/v1")
        guest.connect(door.path)
        there, _ = gateway.accept()
        guest.sendall(b"?")
        assert there.recv(1) == b"?"
        door.close()
        assert there.recv(1) == b"" and guest.recv(1) == b""
        there.close()
    assert caplog.records == []


def test_a_door_may_be_closed_before_anybody_stands_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    for _ in range(30):
        door = sandbox.GatewayDoor("http://127.0.0.1:1/v1")
        door.close()
        assert not Path(door.path).parent.exists()
    assert not raised
