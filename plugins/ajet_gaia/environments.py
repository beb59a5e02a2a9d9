"""Creates the Python virtual environments of the servers' packages, once (`ajet_environments.venvs`).

Invariants: a virtual environment belongs to one list of pinned versions. A failed installation is returned as a
sentence, and its servers are off.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from loguru import logger

from ajet_environments.venvs import READY, compute_digest, fill_environment, lock_folder, make_venv, run_command
from ajet_gaia.server import GaiaServer

PINS = Path(__file__).with_name("pins")


def prepare(servers: Iterable[GaiaServer], folder: Path, *, say: Callable[[str], None] = logger.info) -> list[str]:
    """Create the missing virtual environments of these servers. Return one sentence per failure.

    The servers of a failed installation are off.

    Args:
        folder: folder of all virtual environments.
        say: receives a line before slow steps.
    """
    server_list = list(servers)
    if not server_list:
        return []
    failed = []
    with lock_folder(folder, say):
        for pins in dict.fromkeys(["base", *(server.pins for server in server_list if server.pins)]):
            if not (_python_folder(pins, folder) / READY).exists():
                say(f"installing packages of the tool servers: {pins}")
                failed += _make_environment(pins, _python_folder(pins, folder))
        for package in dict.fromkeys(server.npm for server in server_list if server.npm):
            if not (_npm_folder(package, folder) / READY).exists():
                say(f"installing a package of npm: {package}")
                failed += _install_package(package, _npm_folder(package, folder))
    return failed


def interpreter_of(server: GaiaServer | None, folder: Path) -> Path | None:
    """Return the Python executable of a server's virtual environment.

    Args:
        server: None for the basic virtual environment.
        folder: folder of all virtual environments.

    Returns:
        The path, or None if the environment is not installed or the server uses no Python.
    """
    pins = server.pins if server is not None else "base"
    if not pins:
        return None
    environment = _python_folder(pins, folder)
    return environment / "bin" / "python" if (environment / READY).exists() else None


def npm_folder(server: GaiaServer, folder: Path) -> Path | None:
    """Return the folder of a server's installed npm package, or None if it is not installed."""
    environment = _npm_folder(server.npm, folder)
    return environment if (environment / READY).exists() else None


def _python_folder(pins: str, folder: Path) -> Path:
    """Return the folder of a virtual environment, named by the digest of its pinned versions."""
    # Each of the other files includes base.txt, so its text counts too.
    text = (PINS / "base.txt").read_text() + (PINS / f"{pins}.txt").read_text()
    return folder / f"{pins}-{compute_digest(text)}"


def _npm_folder(package: str, folder: Path) -> Path:
    """Return the folder of an npm package, named by the digest of its name and version."""
    return folder / f"npm-{hashlib.sha256(package.encode()).hexdigest()[:12]}"


def _make_environment(pins: str, target: Path) -> list[str]:
    """Create the virtual environment of one file of pinned versions. Return [] or [error message]."""
    return fill_environment(
        target, lambda: make_venv(target, PINS / f"{pins}.txt", f"the packages {pins} of the tool servers")
    )


def _install_package(package: str, target: Path) -> list[str]:
    """Install an npm package without running its install scripts. Return [] or [error message]."""
    npm = shutil.which("npm")
    if npm is None:
        return [f"{package} cannot be installed, because the program npm is not installed"]
    command = [npm, "install", "--prefix", str(target), "--no-audit", "--no-fund", "--ignore-scripts"]

    def install() -> str:
        target.mkdir()
        return run_command([*command, "--fetch-retries", "1", package], package)

    return fill_environment(target, install)
