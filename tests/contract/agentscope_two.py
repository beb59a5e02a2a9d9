"""An environment with AgentScope 2, whose packages exclude those of AgentScope 1 (210 MB). It finds everything else in
this environment, after its own packages."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.backbone.requirements import find_installed_version
from tests.support.cached_packages import find_own_python, install_packages, locate_python

REQUIREMENT = "agentscope==2.0.11"
ROOT = Path(__file__).resolve().parents[2]
_EXCLUDED = ("agentscope==", "certifi==", "mcp==")
"""Constraints of this environment that AgentScope 2 excludes."""

needs_agentscope_two = pytest.mark.skipif(
    not find_installed_version("agentscope").startswith("2."), reason="it is played in the environment of AgentScope 2"
)


def python_with_agentscope_two() -> Path:
    """Return the interpreter of the environment, or skip the test."""
    return find_own_python(REQUIREMENT)


def allow(function: Callable[..., Any]) -> Any:
    """Return a tool of AgentScope 2 that runs without a confirmation."""
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool

    allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="a tool of the test")
    return FunctionTool(function, permission=allowed)


def _install(folder: Path) -> None:
    uv, python = [sys.executable, "-m", "uv"], locate_python(folder)
    subprocess.run([*uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, folder / "venv"], check=True)
    constraints = folder / "constraints.txt"
    pinned = Path(ROOT, "constraints", f"py3.{sys.version_info.minor}.txt").read_text().splitlines()
    constraints.write_text("\n".join(line for line in pinned if not line.startswith(_EXCLUDED)))
    command = [*uv, "pip", "install", "--quiet", "--python", python, REQUIREMENT, "--constraint", constraints]
    subprocess.run(command, check=True, timeout=600)
    (site,) = (folder / "venv").glob("lib/python3*/site-packages")
    after = (ROOT, ROOT / "plugins", ROOT / "tests" / "support", sysconfig.get_path("purelib"))
    (site / "after.pth").write_text("".join(f"{each}\n" for each in after))


if __name__ == "__main__":
    install_packages(REQUIREMENT, _install)
