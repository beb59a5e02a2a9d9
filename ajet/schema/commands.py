"""Commands that a person can paste: how this ajet is called here, and what installs something for it.

Invariant: every command of ajet's that is printed as advice is made here, so that it works where it is read: in a
clone, with an installed wheel, with an environment that is not activated.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

HOME = Path(__file__).parents[2]
"""The clone, or the folder of installed packages."""
FRESH_ADVICE = "the launch of the run with --fresh (in Python fresh=True) begins a new one and keeps the old folder"
"""What a person can do where a run cannot go on; the option is not one of all commands that read runs."""


def format_command(*words: object) -> str:
    """`ajet WORDS`, as it can be pasted into the shell in which this program was started."""
    return " ".join([find_program(), *(shlex.quote(str(word)) for word in words)])


def find_program() -> str:
    """How ajet is called: `ajet` where that is on the PATH and this one, else by its path, else as a module."""
    script = Path(sys.executable).parent / "ajet"
    found = shutil.which("ajet")
    if found is not None and (not script.exists() or _is_same_file(Path(found), script)):
        return "ajet"
    return shlex.quote(shorten_path(script)) if script.exists() else f"{find_python()} -m ajet"


def find_python() -> str:
    """The word by which this interpreter is called."""
    found = shutil.which("python")
    if found is not None and Path(found) == Path(sys.executable):
        return "python"
    return shlex.quote(shorten_path(Path(sys.executable)))


def format_install(*packages: str) -> str:
    """What installs these packages into the environment of this interpreter, with the tool that is there."""
    listed = " ".join(f'"{package}"' if not package.isidentifier() else package for package in packages)
    return f"{_find_installer()} {listed}"


def format_extra_install(extra: str) -> str:
    """What brings one of ajet's extras: for a clone from that clone, for a wheel from where it came."""
    if (HOME / "pyproject.toml").is_file():
        return f'{_find_installer()} -e "{shorten_path(HOME)}[{extra}]"'
    origin = _find_origin()
    return f'{_find_installer()} "ajet[{extra}] @ {origin}"' if origin else f'{_find_installer()} "ajet[{extra}]"'


def format_own_install() -> str:
    """The command that installs ajet itself anew, with what it requires."""
    if (HOME / "pyproject.toml").is_file():
        return f'{_find_installer()} -e "{shorten_path(HOME)}"'
    return f'{_find_installer()} --force-reinstall "{_find_origin() or "ajet"}"'


def format_run_name(folder: Path, name: str) -> str:
    """The run in `folder` as commands take it here: its name, or its folder where that lies elsewhere than commands
    look."""
    return name if Path("launcher_record", name).resolve() == folder.resolve() else shorten_path(folder)


def format_list_command(root: Path) -> str:
    """The command that lists the runs of `root`."""
    usual = Path("launcher_record").resolve() == root.resolve()
    return format_command("runs") if usual else format_command("runs", "--exp-dir", shorten_path(root))


def _find_installer() -> str:
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        return f"{find_python()} -m pip install"
    sibling = Path(sys.executable).parent / "uv"
    uv = "uv" if shutil.which("uv") else shorten_path(sibling) if sibling.exists() else None
    if uv is not None:
        return f"{shlex.quote(uv)} pip install --python {find_python()}"
    return f"{find_python()} -m ensurepip && {find_python()} -m pip install"


def _find_origin() -> str | None:
    """The place that the installed ajet came from, unless it was an index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        recorded = distribution("ajet").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    address = json.loads(recorded).get("url") if recorded else None
    return str(address) if address else None


def shorten_path(path: str | Path) -> str:
    """The path, from the working directory on where it lies below it."""
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
