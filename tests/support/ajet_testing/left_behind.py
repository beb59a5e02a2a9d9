"""Nothing is left behind: the tests get a home and a folder for temporary files of their own, and the last word on the
checkout, on those folders and on shared memory is said here, when all workers are done. (scripts/suite_costs.py says it
of processes: it adopts those that lose their parent.)

Invariant: a test run that leaves something fails, and names it. What programs keep in a home for the next time (font
lists, model information) is made anew in each run; fetched models and packages lie with the environment that `make
setup` made, in `share/ajet`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

OWN = (".pytest_cache", ".hypothesis", ".ruff_cache", ".mypy_cache", ".import_linter_cache", "__pycache__", ".venv")
"""What tools keep in a checkout, and git ignores."""
SHARED_MEMORY = Path("/dev/shm")
LAST_S = 10.0
"""How long what is left behind may take to go."""
TICK_S = 0.02
"""A file's times are those of the kernel's last tick."""


class LeftBehind:
    """The pytest plugin of the process that the workers answer to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = Path(tempfile.mkdtemp(prefix="ajet-"))  # short: sockets lie below it
        self.home, self.temporary = self.folder / "home", self.folder / "t"
        self.home.mkdir()
        self.temporary.mkdir()
        self.cache = os.environ.setdefault("AJET_CACHE", str(Path(sys.prefix, "share", "ajet")))
        os.environ.update(HOME=str(self.home), TMPDIR=str(self.temporary), npm_config_cache=str(self.home / "npm"))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self.home / "inductor")
        for name in [name for name in os.environ if name.startswith("XDG_")]:
            del os.environ[name]
        tempfile.tempdir = None
        self.before = self.seen()
        self.found: list[str] = []
        self.begun: dict[str, float] = {}
        self.failed: dict[str, float] = {}
        """Until when each failed test ran."""

    def seen(self) -> set[str]:
        """What lies in the checkout that is not of it, and in shared memory."""
        command = ["git", "-C", str(self.root), "status", "--porcelain", "--ignored", "--untracked-files=all"]
        listed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        shared = {str(path) for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
        new = [line[3:] for line in listed if line.startswith(("??", "!!"))]
        return {path for path in new if not any(name in path for name in OWN)} | shared

    def left(self) -> list[str]:
        """What a test left."""
        new = sorted(path for path in self.seen() - self.before if not mapped(path))
        temporary = [path for path in sorted(self.temporary.iterdir()) if not path.name.startswith("pytest-of-")]
        return [*new, *(str(path) for path in temporary)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.begun.setdefault(report.nodeid, report.start)
        if report.failed or report.nodeid in self.failed:
            self.failed[report.nodeid] = report.stop

    def whose(self, path: str) -> str:
        """A failed test's last lines, which would have removed it, did not run: by the time of its last change."""
        with suppress(OSError):
            changed = os.stat(path).st_mtime
            for test, ended in self.failed.items():
                if self.begun[test] - TICK_S <= changed <= ended:
                    return f", within {test}, which failed"
        return ""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        end = time.monotonic() + LAST_S
        while (found := self.left()) and time.monotonic() < end:  # processes that were killed are cleaned up after
            time.sleep(0.5)
        self.found = found
        if self.found and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif exitstatus == pytest.ExitCode.OK:
            shutil.rmtree(self.folder, ignore_errors=True)

    def pytest_unconfigure(self) -> None:
        """After the summary: where all tests passed, this is why the run failed."""
        for path in self.found:
            print(f"left behind by the tests: {path}{self.whose(path)}", flush=True)


def mapped(path: str) -> bool:
    """Whether a living process has this shared memory: then it is another program's, or will still be removed."""
    if not path.startswith(str(SHARED_MEMORY)):
        return False
    try:
        inode = f" {os.stat(path).st_ino} "  # a semaphore is mapped by another name where it was made
    except OSError:
        return True
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if any(inode in line and str(SHARED_MEMORY) in line for line in maps.read_text().splitlines()):
                return True
        except OSError:
            continue
    return False


def register(config: pytest.Config) -> None:
    """In the process that starts the workers, or runs the tests itself."""
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.pluginmanager.register(LeftBehind(config.rootpath), "left behind")
