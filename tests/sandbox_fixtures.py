"""Whether this machine has what a sandbox stands on, asked without our code: a sandbox that is broken is no excuse."""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache

import pytest

from ajet.environment.sandbox.bubblewrap import bubblewrap_program
from ajet.environment.sandbox.inside.kernel import landlock_version
from tests.container_fixtures import lacks_ajet_image, lacks_docker, lacks_podman


@lru_cache(maxsize=8)
def lacks(mechanism: str) -> str:
    """What is missing; "" for nothing."""
    if mechanism == "landlock":
        least = 1 if os.geteuid() == 0 else 6
        return "" if landlock_version() >= least else f"Landlock's ABI {least} is not here"
    if mechanism == "bubblewrap":
        program = bubblewrap_program()
        if program is None:
            return "bubblewrap is not installed"
        done = subprocess.run([program, "--ro-bind", "/", "/", "--unshare-pid", "true"], capture_output=True, text=True)
        return done.stderr.strip() if done.returncode else ""
    if mechanism == "an image of ajet":
        return lacks_ajet_image()
    if mechanism in ("podman", "docker"):
        return lacks_podman() if mechanism == "podman" else lacks_docker()
    return ""


def require(mechanism: str) -> None:
    """Skip the test where this machine cannot run it."""
    if why := lacks(mechanism):
        pytest.skip(why)
