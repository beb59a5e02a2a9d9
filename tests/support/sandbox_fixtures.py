"""Whether this machine has what a sandbox stands on, asked without our code: a sandbox that is broken is no excuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
import pytest

from ajet_sandbox.bubblewrap import find_bubblewrap
from ajet_sandbox.inside.kernel import read_landlock_version
from ajet_sandbox.interpreter import is_reachable
from tests.support.container_fixtures import lacks_ajet_image, lacks_docker, lacks_podman

NOBODY = 65534
ROOT = Path(__file__).resolve().parents[2]


@lru_cache(maxsize=8)
def lacks(mechanism: str) -> str:
    """What is missing; "" for nothing."""
    if mechanism == "landlock":
        least = 1 if os.geteuid() == 0 else 6
        return "" if read_landlock_version() >= least else f"Landlock's ABI {least} is not here"
    if mechanism == "bubblewrap":
        program = find_bubblewrap()
        if program is None:
            return "bubblewrap is not installed"
        done = subprocess.run([program, "--ro-bind", "/", "/", "--unshare-pid", "true"], capture_output=True, text=True)
        return done.stderr.strip() if done.returncode else ""
    if mechanism == "an image of ajet":
        return lacks_ajet_image()
    if mechanism in ("podman", "docker"):
        return lacks_podman() if mechanism == "podman" else lacks_docker()
    return ""


def run_as_nobody(script: str, *arguments: str | Path) -> Any:
    """Run a script of the repository as an ordinary user and read its JSON. Skips where no such user can run it."""
    python = next((each for each in (sys.executable, "/usr/bin/python3") if is_reachable(each)), None)
    if python is None or not is_reachable(str(ROOT)):
        pytest.skip("no Python, or not this folder, can be reached by another user")
    packages = str(Path(psutil.__file__).parents[1])
    done = subprocess.run(
        [python, ROOT / script, *arguments],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": f"{ROOT}:{ROOT}/plugins:{packages}", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def require(mechanism: str) -> None:
    """Skip the test where this machine cannot run it."""
    if why := lacks(mechanism):
        pytest.skip(why)
