"""Every attack of the table, on every mechanism, as this user and as an ordinary one; and on no sandbox at all, where
they must get through: an attack that cannot succeed says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ajet.record.held_folder import make_workdir
from ajet.rollout.isolation.messages import WorkerSetup
from ajet.schema.endpoint import Endpoint
from ajet.schema.sandbox import Limits
from ajet_sandbox.choose import ENGINES, try_mechanism
from ajet_sandbox.identity import choose_uid
from ajet_sandbox.isolation import GatewayDoor, WorkerSandbox
from ajet_sandbox.program import Walls, wall_program
from ajet_sandbox.tests.attack_targets import targets
from ajet_sandbox.tests.sandbox_attacks import ATTACKS, REACHES, reached, verdicts
from tests.support.container_fixtures import IMAGE
from tests.support.sandbox_fixtures import require, run_as_nobody

pytestmark = pytest.mark.slow

LIMITS_OF_ITS_OWN = Limits()
TREE = "memory in four processes"
OUTSIDE_PROCESSES = {"memory in memfds", "memory in socket buffers", "memory in pipes"}
BY_THE_RESIDENT = OUTSIDE_PROCESSES | {
    "a secret in its own environment", "open files of the process outside", "a link that is read from outside",
    "a daemon that stays", "memory in one process", TREE, "one big file", "many files", "an endless loop",
    "a flood of output",
}  # fmt: skip
"""Held without a sandbox, too."""


def held(found: dict[str, tuple[str, str]], *, watched: bool) -> None:
    """All, and memory of several processes exactly where a control group holds it."""
    assert set(found) == set(ATTACKS)
    assert {name: outcome for name, outcome in found.items() if outcome[0] == "got through"} == {}
    within = {name for name, outcome in found.items() if outcome[0] == "held within"}
    assert within - {"many files", "memory in one process", *OUTSIDE_PROCESSES} == ({TREE} if watched else set()), found


@pytest.mark.parametrize(
    "mechanism", ["bubblewrap", "landlock", "podman", pytest.param("docker", marks=pytest.mark.extra_slow)]
)
def test_as_this_user(mechanism: str) -> None:
    require(mechanism)
    image = IMAGE if mechanism in ENGINES else None
    trial = try_mechanism(mechanism, image)
    assert trial.works, trial.why
    held(verdicts(mechanism, image=image), watched=trial.memory_held_by == "a watcher")


@pytest.mark.parametrize("mechanism", ["bubblewrap", "landlock"])
def test_as_an_ordinary_user(mechanism: str) -> None:
    require(mechanism)
    if os.geteuid() != 0:
        pytest.skip("test_as_this_user is that")
    found = run_as_nobody("plugins/ajet_sandbox/tests/sandbox_attacks.py", mechanism, "False")
    held({name: tuple(outcome) for name, outcome in found.items()}, watched=True)


TRIES = """
import json, os, sys, time
said = {}
for name, code in json.loads(sys.argv[1]).items():
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork():
            os._exit(0)
        os.dup2(theirs, 1)
        os.closerange(3, 64)
        while os.getppid() != 1:  # nobody of this program's is its parent
            time.sleep(0.001)
        try:
            exec(code, {})
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
    os.close(theirs)
    with open(ours) as words:
        said[name] = words.read()
print(json.dumps(said))
"""


def of_a_tool_server(command: list[str], shown: Path, work: Path) -> str:
    """What a command says as a confined tool server, or a confined service, is started."""
    uid = choose_uid()
    wall = wall_program(command, Walls(make_workdir(work, "work", uid), (shown,), uid), {})
    try:
        done = subprocess.run(
            wall.argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env={}, cwd="/",
            pass_fds=wall.descriptors, user=wall.user, group=wall.user,
            extra_groups=None if wall.user is None else [],
        )  # fmt: skip
    finally:
        for each in wall.descriptors:
            os.close(each)
    return done.stdout or done.stderr


def of_a_workflow(command: list[str], shown: Path, work: Path) -> str:
    """What a command says in a sandbox of `rollout.isolation: sandbox`."""
    door = GatewayDoor("http://127.0.0.1:9/v1")
    said, says = os.pipe()
    try:
        ambient = Endpoint("http://127.0.0.1:9/v1", "key")
        box = WorkerSandbox(
            WorkerSetup("flow.py->Never", shown, (), ambient), door.path, "http://127.0.0.1:9", LIMITS_OF_ITS_OWN
        )
        started = box._start_process(command, says, ())
        os.close(says)
        with open(said, closefd=False) as words:
            text = words.read()
        assert started.process.wait(60) == 0, text
        started.remove()
        return text
    finally:
        os.close(said)
        door.close()


@pytest.mark.parametrize("user", [of_a_tool_server, of_a_workflow])
def test_nothing_outside_is_reached_from_what_is_shown_a_folder(
    user: Callable[[list[str], Path, Path], str], tmp_path: Path
) -> None:
    require("bubblewrap")
    for each in (tmp_path, *tmp_path.parents[:2]):  # a user of the sandbox's own passes through
        each.chmod(each.stat().st_mode | 0o011)
    with targets() as made:
        codes = json.dumps({name: program(made) for name, program in REACHES.items()})
        said = user([sys.executable, "-I", "-S", "-c", TRIES, codes], Path(made.shown), tmp_path)
    found = json.loads(said)
    assert set(found) == set(REACHES)
    assert {name: text for name, text in found.items() if reached(text)} == {}


def test_without_a_sandbox_they_get_through() -> None:
    names = [name for name in ATTACKS if name not in BY_THE_RESIDENT and name != "a fork bomb"]
    found = verdicts("none", names=names)
    assert {name for name, outcome in found.items() if outcome[0] != "got through"} == set()
