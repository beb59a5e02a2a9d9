"""Makes and finds the cached environments of `scripts/environments.py`: each is an entry of ajet's cache.

Tests do not install them: `make test-slow` does (`python -m tests.support.environments [NAME]`). Where one is missing,
the tests that need it are skipped with that reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path

import pytest

from ajet.config.locations import find_cache_root
from ajet.engine.model_cache import open_entry
from scripts.environments import ENVIRONMENTS, PackageEnvironment, get_environment

ROOT = Path(__file__).resolve().parents[2]


def find_environment_python(name: str) -> Path:
    """Return the interpreter of an environment, or skip the test."""
    return _locate_python(find_environment_folder(name))


def find_environment_folder(name: str) -> Path:
    """Return the folder of an environment's entry, or skip the test."""
    folder = find_cache_root() / _name_entry(get_environment(name))
    if not folder.is_dir():
        pytest.skip(f"the environment {name} is missing: `make test-slow` makes it, where a registry answers")
    return folder


def make_environment(environment: PackageEnvironment) -> None:
    """Fill the entry unless it exists; print an error of the installation."""
    try:
        open_entry(_name_entry(environment), lambda folder: _install(environment, folder))
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{environment.name} could not be installed, its tests are skipped: {error}", file=sys.stderr)


def _install(environment: PackageEnvironment, folder: Path) -> None:
    if environment.own_files:
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
        subprocess.run([*command, "--target", str(folder), *environment.packages], check=True, timeout=600)
        return
    python = str(_locate_python(folder))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pins = _write_pins(environment, folder) if environment.unpinned else []
    pip = [python, "-m", "pip"]
    checkout = ["--editable", f"{ROOT}[{environment.ajet_extra}]"] if environment.ajet_extra else []
    subprocess.run([*pip, "install", "--quiet", *environment.packages, *checkout, *pins], check=True, timeout=1800)
    if environment.unwanted:
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *environment.unwanted], check=True)
    if environment.unpinned:  # last, as pip takes what it finds for installed
        _add_this_environment(folder)


def _write_pins(environment: PackageEnvironment, folder: Path) -> list[str]:
    """Return pip's options for the versions of `.venv`, except those that the packages exclude."""
    pinned = Path(ROOT, "constraints", f"py3.{sys.version_info.minor}.txt").read_text().splitlines()
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(line for line in pinned if not line.startswith(environment.unpinned)))
    return ["--constraint", str(constraints)]


def _add_this_environment(folder: Path) -> None:
    """Let the environment find the packages of this one after its own."""
    (site,) = (folder / "venv").glob("lib/python3*/site-packages")
    after = (ROOT, ROOT / "plugins", ROOT / "tests" / "support", sysconfig.get_path("purelib"))
    (site / "after.pth").write_text("".join(f"{each}\n" for each in after))


def _locate_python(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def _name_entry(environment: PackageEnvironment) -> str:
    first, *more = environment.packages
    digest = f"-{zlib.crc32(' '.join(more).encode()):08x}" if more else ""
    return f"python/{first}{digest}-{sys.version_info.major}.{sys.version_info.minor}"


if __name__ == "__main__":
    os.environ.setdefault("AJET_CACHE", str(Path(sys.prefix, "share", "ajet")))
    for each in ENVIRONMENTS:
        if each.place == "cache" and (not sys.argv[1:] or each.name in sys.argv[1:]):
            make_environment(each)
