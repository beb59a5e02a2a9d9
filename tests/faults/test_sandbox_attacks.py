"""Every attack of the table, on every mechanism, as this user and as an ordinary one; and on no sandbox at all, where
they must get through: an attack that cannot succeed says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ajet.environment.sandbox.attacks import ATTACKS
from ajet.environment.sandbox.choose import ENGINES, tried
from ajet.environment.sandbox.interpreter import reachable
from tests.container_fixtures import IMAGE
from tests.sandbox_attacks import verdicts
from tests.sandbox_fixtures import require

NOBODY = 65534
ROOT = Path(__file__).resolve().parents[2]
TREE = "memory in four processes"
BY_THE_RESIDENT = {
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
    assert within - {"many files", "memory in one process"} == ({TREE} if watched else set()), found


@pytest.mark.parametrize(
    "mechanism", ["bubblewrap", "landlock", "podman", pytest.param("docker", marks=pytest.mark.extra_slow)]
)
def test_as_this_user(mechanism: str) -> None:
    require(mechanism)
    image = IMAGE if mechanism in ENGINES else None
    trial = tried(mechanism, image)
    assert trial.works, trial.why
    held(verdicts(mechanism, image=image), watched=trial.memory_held_by == "a watcher")


@pytest.mark.parametrize("mechanism", ["bubblewrap", "landlock"])
def test_as_an_ordinary_user(mechanism: str) -> None:
    require(mechanism)
    if os.geteuid() != 0:
        pytest.skip("test_as_this_user is that")
    python = next((each for each in (sys.executable, "/usr/bin/python3") if reachable(each)), None)
    if python is None or not reachable(str(ROOT)):
        pytest.skip("no Python, or not this folder, can be reached by another user")
    packages = str(Path(psutil.__file__).parents[1])
    done = subprocess.run(
        [python, ROOT / "tests" / "sandbox_attacks.py", mechanism, "False"],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": f"{ROOT}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    held({name: tuple(outcome) for name, outcome in json.loads(done.stdout).items()}, watched=True)


def test_without_a_sandbox_they_get_through() -> None:
    names = [name for name in ATTACKS if name not in BY_THE_RESIDENT and name != "a fork bomb"]
    found = verdicts("none", names=names)
    assert {name for name, outcome in found.items() if outcome[0] != "got through"} == set()
