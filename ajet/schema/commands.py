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
ANEW = "the launch of the run with --fresh (in Python fresh=True) begins a new one and keeps the old folder"
"""What a person can do where a run cannot go on; the option is not one of all commands that read runs."""


def command(*words: object) -> str:
    """`ajet WORDS`, as it can be pasted into the shell in which this program was started."""
    return " ".join([program(), *(shlex.quote(str(word)) for word in words)])


def program() -> str:
    """How ajet is called: `ajet` where that is on the PATH and this one, else by its path, else as a module."""
    script = Path(sys.executable).parent / "ajet"
    found = shutil.which("ajet")
    if found is not None and (not script.exists() or _same(Path(found), script)):
        return "ajet"
    return shlex.quote(short_path(script)) if script.exists() else f"{python()} -m ajet"


def python() -> str:
    """The word by which this interpreter is called."""
    found = shutil.which("python")
    if found is not None and Path(found) == Path(sys.executable):
        return "python"
    return shlex.quote(short_path(Path(sys.executable)))


def installs(*packages: str) -> str:
    """What installs these packages into the environment of this interpreter, with the tool that is there."""
    listed = " ".join(f'"{package}"' if not package.isidentifier() else package for package in packages)
    return f"{_installer()} {listed}"


def installs_extra(extra: str) -> str:
    """What brings one of ajet's extras: for a clone from that clone, for a wheel from where it came."""
    if (HOME / "pyproject.toml").is_file():
        return f'{_installer()} -e "{short_path(HOME)}[{extra}]"'
    origin = _origin()
    return f'{_installer()} "ajet[{extra}] @ {origin}"' if origin else f'{_installer()} "ajet[{extra}]"'


def installs_here() -> str:
    """The command that installs ajet itself anew, with what it requires."""
    if (HOME / "pyproject.toml").is_file():
        return f'{_installer()} -e "{short_path(HOME)}"'
    return f'{_installer()} --force-reinstall "{_origin() or "ajet"}"'


def run_named(folder: Path, name: str) -> str:
    """The run in `folder` as commands take it here: its name, or its folder where that lies elsewhere than commands
    look."""
    return name if Path("launcher_record", name).resolve() == folder.resolve() else short_path(folder)


def lists_runs(root: Path) -> str:
    """The command that lists the runs of `root`."""
    usual = Path("launcher_record").resolve() == root.resolve()
    return command("runs") if usual else command("runs", "--exp-dir", short_path(root))


def _installer() -> str:
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        return f"{python()} -m pip install"
    beside = Path(sys.executable).parent / "uv"
    uv = "uv" if shutil.which("uv") else short_path(beside) if beside.exists() else None
    if uv is not None:
        return f"{shlex.quote(uv)} pip install --python {python()}"
    return f"{python()} -m ensurepip && {python()} -m pip install"


def _origin() -> str | None:
    """The place that the installed ajet came from, unless it was an index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        told = distribution("ajet").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    address = json.loads(told).get("url") if told else None
    return str(address) if address else None


def short_path(path: str | Path) -> str:
    """The path, from the working directory on where it lies below it."""
    whole = os.path.abspath(path)  # not resolved: an environment is known by its own link to Python
    try:
        return str(Path(whole).relative_to(Path.cwd()))
    except ValueError:
        return whole


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
