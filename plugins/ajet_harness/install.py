"""Installs the pinned packages of a harness, once, into the user's cache.

Invariant: a folder belongs to one list of packages (its name holds the list's digest) and is used only when complete.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from loguru import logger

from ajet.config.locations import find_cache_root
from ajet.schema.errors import UserError
from ajet_environments.venvs import (
    READY,
    compute_digest,
    fill_environment,
    find_uv,
    lock_folder,
    make_venv,
    run_command,
)
from ajet_harness.presets import Preset, read_preset

LIMIT_S = 1800.0
"""Seconds for one installation: the packages have up to 570 MB."""
NPM = ("npm", "install", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=60000")
_PROGRAMS = {True: "node_modules/.bin", False: "bin"}
"""Folder of programs, by whether the packages are npm's."""
NODE_HINT = "install Node.js with npm (https://nodejs.org, `conda install nodejs`, or a version manager such as nvm)"
PYTHON_HINT = "install it (`uv python install {0}`, `pyenv install {0}`, or the system's packages) or install uv"


def install_harness(name: str) -> Path:
    """Return the folder with the harness's programs, installed if missing.

    Raises:
        UserError: Node.js or Python is missing or too old, or the packages cannot be installed.
    """
    preset = read_preset(name)
    if preset.npm:
        _require_node(name, preset.node)
    if (programs := find_installed(name)) is not None:
        return programs
    target, packages = _choose_folder(name), ", ".join([*preset.npm, *preset.requirements])
    with lock_folder(target.parent, logger.info):
        if find_installed(name) is None:
            logger.info("installing the harness {} ({}) once, in {}", name, packages, target)
            if problem := "".join(fill_environment(target, lambda: _install_packages(target, name, preset))):
                raise UserError(
                    f"The harness {name} cannot be installed.",
                    where=str(target),
                    expected=f"the packages {packages}",
                    do=problem,
                )
    return target / _PROGRAMS[bool(preset.npm)]


def find_installed(name: str) -> Path | None:
    """Return the folder with the harness's programs, or None if it is not installed."""
    target = _choose_folder(name)
    return target / _PROGRAMS[bool(read_preset(name).npm)] if (target / READY).exists() else None


def _choose_folder(name: str) -> Path:
    preset = read_preset(name)
    content = "\n".join([*preset.npm, *preset.requirements, *preset.links, *preset.python])
    return find_cache_root() / "harness" / f"{name}-{compute_digest(content)}"


def _install_packages(target: Path, name: str, preset: Preset) -> str:
    """Return "" or an error message."""
    target.mkdir(parents=True)
    if preset.npm:
        if problem := run_command([*NPM, "--prefix", str(target), *preset.npm], f"npm install {name}", limit=LIMIT_S):
            return problem
        modules = target / "node_modules"
        for link, pattern in preset.links.items():
            for program in modules.glob(pattern):
                (modules / ".bin" / link).symlink_to(program)
        return ""
    requirements = target / "requirements.txt"
    requirements.write_text("\n".join(preset.requirements) + "\n", encoding="utf-8")
    python = _find_python(name, preset.python)
    return make_venv(target, requirements, f"the harness {name}", python=python, limit=LIMIT_S)


@cache
def _read_version(program: str) -> tuple[int, int] | None:
    """Return major and minor version of Node.js or Python; None if the program does not run."""
    try:
        printed = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(\d+)\.(\d+)", printed)
    return (int(match[1]), int(match[2])) if match else None


def _require_node(name: str, oldest: tuple[int, int]) -> None:
    """Raise UserError unless npm and a recent Node.js are on the PATH."""
    expected = f"Node.js {oldest[0]}.{oldest[1]} or newer, with npm, on the PATH"
    path = shutil.which("node")
    version = _read_version(path) if path else None
    if path is None or version is None or shutil.which("npm") is None:
        missing = "npm" if path and version else "Node.js"
        raise UserError(f"The harness {name} needs {missing}, which is not installed.", expected=expected, do=NODE_HINT)
    if version < oldest:
        raise UserError(
            f"The harness {name} does not run with Node.js {version[0]}.{version[1]}.",
            where=path,
            expected=expected,
            do=NODE_HINT,
        )


def _find_python(name: str, versions: Sequence[str]) -> str:
    """Return a Python of one of the versions, or the first version if uv may find or fetch it. Raises UserError."""
    if not versions or f"{sys.version_info[0]}.{sys.version_info[1]}" in versions:
        return sys.executable
    for version in versions:
        path = shutil.which(f"python{version}")
        if path is not None and _read_version(path) == tuple(map(int, version.split("."))):
            return path
    if find_uv():
        return versions[0]
    raise UserError(
        f"The harness {name} needs Python {' or '.join(versions)}, which is not installed.",
        expected=f"python{versions[0]} on the PATH",
        do=PYTHON_HINT.format(versions[0]),
    )
