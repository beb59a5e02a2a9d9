"""Format commands for pasting: ajet's own command line, and commands for installing packages.

Invariant: all printed ajet commands come from this module, so that the commands work in a clone, with an installed
wheel, and with an inactive environment.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import sys
from pathlib import Path

HOME = Path(__file__).parents[2]
"""The clone, or the folder of installed packages."""
FRESH_ADVICE = "start the run with --fresh (in Python fresh=True), which begins a new run and keeps the old folder"
"""Advice for a run that cannot continue. Not every command on runs has the option."""


def format_command(*words: object) -> str:
    """Return the command line `ajet WORDS` with quoted words, for pasting into the user's shell."""
    return " ".join([find_program(), *(shlex.quote(str(word)) for word in words)])


def find_program() -> str:
    """Return how the shell calls this ajet: `ajet` if the PATH leads to it, else a path, else `python -m ajet`."""
    script = Path(sys.executable).parent / "ajet"
    on_path = shutil.which("ajet")
    if on_path is not None and (not script.exists() or _is_same_file(Path(on_path), script)):
        return "ajet"
    return shlex.quote(shorten_path(script)) if script.exists() else f"{find_python()} -m ajet"


def find_python() -> str:
    """Return how the user's shell calls this interpreter: `python` if the PATH leads to it, else its quoted path."""
    on_path = shutil.which("python")
    if on_path is not None and Path(on_path) == Path(sys.executable):
        return "python"
    return shlex.quote(shorten_path(Path(sys.executable)))


def format_install(*packages: str) -> str:
    """Return the command line that installs packages into the current interpreter's environment."""
    # Quoted if it has a version bound.
    package_list = " ".join(f'"{package}"' if not package.isidentifier() else package for package in packages)
    return f"{_find_installer()} {package_list}"


def format_extra_install(extra: str) -> str:
    """Return the command line that installs an extra of ajet, from the clone or from the wheel's origin."""
    if (HOME / "pyproject.toml").is_file():
        return f'{_find_installer()} -e "{shorten_path(HOME)}[{extra}]"'
    origin = find_origin()
    return f'{_find_installer()} "ajet[{extra}] @ {origin}"' if origin else f'{_find_installer()} "ajet[{extra}]"'


def explain_python_bound(extra: str) -> str | None:
    """Return why an extra of ajet cannot be installed for this Python, or None if it can.

    Some requirements of extras carry a marker `python_version < "X"`.
    """
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        requirements = [Requirement(line) for line in requires("ajet") or []]
    except PackageNotFoundError:
        return None
    for requirement in sorted(
        requirements, key=lambda requirement: not extra.startswith(requirement.name)
    ):  # its namesake first
        marker = str(requirement.marker)
        upper_bound = re.search(r'python_version < "([\d.]+)"', marker) if f'extra == "{extra}"' in marker else None
        if upper_bound and requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            package = f"{requirement.name} {str(requirement.specifier).removeprefix('==')}"
            return f"{package} needs Python below {upper_bound[1]}, and this is Python {platform.python_version()}"
    return None


def format_own_install() -> str:
    """Return the command line that installs ajet again together with its requirements."""
    if (HOME / "pyproject.toml").is_file():
        return f'{_find_installer()} -e "{shorten_path(HOME)}"'
    return f'{_find_installer()} --force-reinstall "{find_origin() or "ajet"}"'


def format_run_name(folder: Path, name: str) -> str:
    """Return how commands name a run: by name in the default folder `launcher_record`, else by its folder's path."""
    return name if Path("launcher_record", name).resolve() == folder.resolve() else shorten_path(folder)


def format_list_command(root: Path) -> str:
    """Return the command line that lists the runs in folder `root`."""
    is_default_folder = Path("launcher_record").resolve() == root.resolve()
    return format_command("runs") if is_default_folder else format_command("runs", "--exp-dir", shorten_path(root))


def _find_installer() -> str:
    """Return the start of an install command: pip if installed, else uv, else pip after installing pip itself."""
    from importlib.metadata import distributions

    # `find_spec("pip")` breaks setuptools: its import hook takes that for a run of pip and keeps the old distutils.
    if any(distributions(name="pip")):
        return f"{find_python()} -m pip install"
    sibling = Path(sys.executable).parent / "uv"
    uv = "uv" if shutil.which("uv") else shorten_path(sibling) if sibling.exists() else None
    if uv is not None:
        return f"{shlex.quote(uv)} pip install --python {find_python()}"
    return f"{find_python()} -m ensurepip && {find_python()} -m pip install"


def find_origin() -> str | None:
    """Return the URL that ajet was installed from (a wheel or a repository), or None if it was a package index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        direct_url = distribution("ajet").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    address = json.loads(direct_url).get("url") if direct_url else None
    return str(address) if address else None


def shorten_path(path: str | Path) -> str:
    """Return the path relative to the working directory if it lies below, else the absolute path."""
    absolute = os.path.abspath(path)  # not resolved: an environment is known by its own link to Python
    try:
        return str(Path(absolute).relative_to(Path.cwd()))
    except ValueError:
        return absolute


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
