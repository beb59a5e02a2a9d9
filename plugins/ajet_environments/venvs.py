"""Separate Python virtual environments for programs whose packages conflict with ajet's.

Invariants: a virtual environment belongs to one list of requirements (its folder is named by the list's digest) and is
used only when complete. Every step has a time limit, so an unreachable package index costs minutes at most. Two
processes that create the same one wait for each other, up to a limit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from loguru import logger

from ajet.config.locations import find_cache_root
from ajet.record.lock import alone
from ajet.schema.errors import UserError

READY = "ajet-ready"
"""Marker file of a complete environment."""
LIMIT_S = 300.0
"""Seconds for one step."""
WAIT_S = 6 * LIMIT_S
"""Seconds to wait for another process in the same folder."""
QUICK_HTTP = {
    "UV_HTTP_TIMEOUT": "15",
    "UV_HTTP_RETRIES": "1",
    "UV_HTTP_CONNECT_TIMEOUT": "5",
    "PIP_TIMEOUT": "10",
    "PIP_RETRIES": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


def prepare_python(requirements: Path, *, say: Callable[[str], None] = logger.info) -> Path:
    """Return the Python executable of a virtual environment with the listed packages.

    It is created if missing, which takes 10 seconds to minutes.

    Args:
        requirements: a requirements.txt file.
        say: receives one message before a creation.

    Raises:
        UserError: the virtual environment cannot be created.
    """
    try:
        text = requirements.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(
            f"The file of requirements cannot be read: {problem}.",
            where=str(requirements),
            expected="a file that lists packages in the format of pip",
        ) from None
    folder = find_cache_root() / "python"
    target = folder / compute_digest(text)
    if not (target / READY).exists():
        with lock_folder(folder, say):
            if not (target / READY).exists():
                say(f"creating a Python environment with the packages of {requirements} (once, in {target})")
                if problem := "".join(
                    fill_environment(target, lambda: make_venv(target, requirements, "the packages"))
                ):
                    raise UserError(
                        f"The Python environment for {requirements.name} cannot be created.",
                        where=str(requirements),
                        expected="packages that the package index has for Python "
                        f"{sys.version_info[0]}.{sys.version_info[1]}",
                        do=problem,
                    )
    return target / "bin" / "python"


def compute_digest(text: str) -> str:
    """Return 12 hex digits that identify a requirements text and this Python version."""
    return hashlib.sha256(f"{sys.version_info[0]}.{sys.version_info[1]}\n{text}".encode()).hexdigest()[:12]


def fill_environment(target: Path, make: Callable[[], str]) -> list[str]:
    """Empty the folder, fill it by `make`, and mark it as complete.

    Args:
        make: creates the content and returns "" or an error message.

    Returns:
        A list with the error message, or an empty list.
    """
    shutil.rmtree(target, ignore_errors=True)  # an interrupted call may have left files
    if problem := make():
        shutil.rmtree(target, ignore_errors=True)
        return [problem]
    (target / READY).touch()
    return []


def find_uv() -> str | None:
    """Return the path of uv, on the PATH or next to this Python; None without uv."""
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))


def make_venv(
    target: Path, requirements: Path, what: str, *, python: str = sys.executable, limit: float | None = None
) -> str:
    """Create a virtual environment and install the requirements by uv, or by pip if uv is missing or fails.

    Args:
        target: folder of the virtual environment.
        what: description of the content, for error messages.
        python: path of its Python, or a version that uv finds or downloads.
        limit: seconds for each installation; None is LIMIT_S.

    Returns:
        "" or an error message.
    """
    uv = find_uv()
    create = [python, "-m", "venv", "--without-pip"]
    if os.sep not in python:  # a version such as 3.11, which only uv can look up
        create = [str(uv), "venv", "--allow-existing", "--python", python]
    problem = run_command([*create, str(target)], "venv")
    if problem:
        return problem
    venv_python = str(target / "bin" / "python")
    uv_command = [
        str(uv),
        "pip",
        "install",
        "--quiet",
        "--compile-bytecode",
        "--python",
        venv_python,
        "-r",
        str(requirements),
    ]
    if uv is not None and not run_command(uv_command, what, limit=limit):
        return ""
    pip_command = [sys.executable, "-m", "pip", "--python", venv_python, "install", "--quiet", "-r", str(requirements)]
    return run_command(pip_command, what, limit=limit)  # pip's settings may name a package index that uv does not know


def run_command(command: Sequence[str], what: str, *, limit: float | None = None) -> str:
    """Run a command with a time limit, and return "" or an error message. A timeout kills its process group.

    Args:
        what: what the command makes, at the start of the message.
        limit: seconds; None is LIMIT_S.
    """
    limit = LIMIT_S if limit is None else limit
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **QUICK_HTTP},
            start_new_session=True,
        )
    except OSError as error:
        return f"{what}: {error}"
    with process:
        try:
            stdout, stderr = process.communicate(timeout=limit)
        except BaseException as problem:  # also an interrupt, which must leave no process behind
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(problem, subprocess.TimeoutExpired):
                return f"{what}: not finished within {limit:.0f} s"
            raise
    last_line = (stderr or stdout).strip().splitlines()[-1:]
    return f"{what}: {' '.join(last_line) or f'exit code {process.returncode}'}" if process.returncode else ""


def lock_folder(folder: Path, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Hold an exclusive lock of the folder within a block.

    Raises:
        UserError: the folder is not writable, or locked for longer than WAIT_S.
    """
    activity, do = "creates Python environments there", "set AJET_CACHE to another folder"
    return alone(folder / ".lock", activity, say=say, at_most=WAIT_S, do=do)
