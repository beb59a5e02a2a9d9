"""Checkout: the code of one compared version, and how Python processes are run with that code and no other.

Invariant: `PYTHONPATH` begins with a folder of this checkout's own that holds `sitecustomize.py` (it refuses modules
of other checkouts in every child process) and metadata of the distribution `ajet` with the entry points of this
checkout's pyproject.toml. After it come the checkout and its `plugins/`. What a process of `python -I -S` runs is
named by the path of a file of a loaded module, and so is of the checkout as well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

PARTS = Path(__file__).resolve().parent
TIMEOUT_S = 900
ALONE = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "TERM": "dumb"}


class RunError(Exception):
    """A command of a setting did not end as it should; the text is what it printed last."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Checkout:
    """One version's code, with a folder for what its import path needs."""

    name: str
    code: Path
    folder: Path
    others: list[Path] = field(default_factory=list)
    """Checkouts that nothing may be imported from."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        shutil.copy(PARTS / "imports" / "sitecustomize.py", self.folder)
        others = [str(other.resolve()) for other in self.others if other.resolve() != self.code.resolve()]
        side = {"code": str(self.code.resolve()), "drivers": str(PARTS), "others": others}
        (self.folder / "side.json").write_text(json.dumps(side))
        write_metadata(self.code, self.folder)

    def environment(self) -> dict[str, str]:
        """Return the environment of each process of this side."""
        path = [str(self.folder), str(self.code), str(self.code / "plugins")]
        return {**os.environ, **ALONE, "PYTHONPATH": os.pathsep.join(path)}

    def start(self, arguments: list[str], place: Path, **environment: str) -> subprocess.Popen[str]:
        """Start Python with these arguments in the folder `place`."""
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=place, env={**self.environment(), **environment}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, arguments: list[str], place: Path, expected: int = 0, **environment: str) -> str:
        """Run Python to its end and return what it printed. Raises RunError for another exit code."""
        return self.wait(self.start(arguments, place, **environment), expected)

    def wait(self, process: subprocess.Popen[str], expected: int = 0) -> str:
        """Wait for a process and return what it printed. Raises RunError for another exit code."""
        try:
            printed, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as problem:
            raise RunError(f"it took more than {TIMEOUT_S} s") from problem
        finally:
            process.kill()  # no effect on one that ended
        if process.returncode != expected:
            raise RunError(
                f"exit code {process.returncode}, expected {expected}:\n{printed[-3000:]}", process.returncode
            )
        return printed

    def clear_modules(self) -> None:
        """Forget which modules earlier processes loaded."""
        for name in ("wrong.txt", "right.txt"):
            (self.folder / name).unlink(missing_ok=True)

    def check_other_modules(self) -> None:
        """Raises RunError if a module of another checkout was imported."""
        wrong = self.folder / "wrong.txt"
        if wrong.exists():
            files = sorted({line.split(" ", 1)[1] for line in wrong.read_text().splitlines()})
            raise RunError(f"{len(files)} modules of another checkout were imported, such as {files[0]}")

    def check_modules(self) -> None:
        """Raises RunError unless modules of ours were loaded, each from this checkout."""
        self.check_other_modules()
        if not (self.folder / "right.txt").exists():
            raise RunError(f"no module of ours was loaded from {self.code}")


def write_metadata(code: Path, folder: Path) -> None:
    """Write metadata of the distribution `ajet` whose entry points are those of the checkout."""
    project = tomllib.loads((code / "pyproject.toml").read_text())["project"]
    groups = {**project.get("entry-points", {}), "console_scripts": project.get("scripts", {})}
    made = folder / f"ajet-{project['version']}.dist-info"
    made.mkdir()
    metadata = distribution("ajet").read_text("METADATA") or ""
    (made / "METADATA").write_text(re.sub(r"(?m)^Version: .*$", f"Version: {project['version']}", metadata, count=1))
    lines = [
        line for name, points in groups.items() for line in (f"[{name}]", *(f"{k} = {v}" for k, v in points.items()))
    ]
    (made / "entry_points.txt").write_text("\n".join(lines) + "\n")
