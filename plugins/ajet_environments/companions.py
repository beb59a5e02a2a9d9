"""Companions: the programs that a run needs beside it (`ajet.services`), started before it and ended after it.

Invariants: a companion is ended with all that it started, whatever ends the run, a kill included: its keeper ends the
tree when this process is gone. What it prints is in the run's folder. One that answers before it is started is
somebody else's: it is used and left alone. The run begins when all are ready, or not at all; what ends while it goes on
is started again (`restarts`).
"""

from __future__ import annotations

import json
import os
import select
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from loguru import logger

from ajet.config.schema.services import Companion
from ajet.environment.sandbox.walls import Walled
from ajet.record.files import read_tail
from ajet.run.restarts import Restarts
from ajet.schema.errors import SandboxFailure, UserError
from ajet.workflow.command import keeper

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.run.confined import Cell

GRACE_S = 5.0
"""Seconds between asking a companion to end and ending it."""
LOOK_S = 0.1
ASK_S = 2.0
"""How long one question whether it answers may take."""
AGENTJETS_READY = "Starting server on"
"""What AgentJet's services print when they are ready."""
AGENTJETS_TIMEOUT_S = 3600.0
SHOWN = 15
"""Lines of a log that an error shows."""
READ = 1 << 16
"""Bytes at its end in which they are looked for."""


def wanted(experiment: Experiment, flags: Sequence[str], environment: Mapping[str, str]) -> dict[str, Companion]:
    """The companions that a run starts, by name: the YAML's, and what `--with-NAME` names. One that the YAML does not
    know is AgentJet's, which NAME_PATH and NAME_SCRIPT of the environment describe. Raises UserError."""
    declared = experiment.ajet.services
    found = {name: each for name, each in declared.items() if not each.only_with_flag or name in flags}
    for name in flags:
        if name not in declared:
            found[name] = _of_environment(name, declared, environment)
    for name, each in found.items():
        if not each.command:
            raise UserError(f"The service {name} has no command.", where=f"ajet.services.{name}.command")
    return found


def _of_environment(name: str, declared: Mapping[str, Companion], environment: Mapping[str, str]) -> Companion:
    path, script = (environment.get(f"{name.upper()}_{each}") for each in ("PATH", "SCRIPT"))
    if path and script:
        command = ["/bin/bash", "-c", script]
        return Companion(command=command, cwd=path, ready=AGENTJETS_READY, timeout=AGENTJETS_TIMEOUT_S)
    raise UserError(
        f"--with-{name} names no service.",
        where="command line",
        expected=f"one of ajet.services in the YAML ({', '.join(declared) or 'it has none'}), or the variables "
        f"{name.upper()}_PATH and {name.upper()}_SCRIPT: a folder, and a command that is run in it",
        do=f"write services: {{{name}: {{command: …, ready: http://127.0.0.1:PORT/healthz}}}} below ajet:",
    )


@contextmanager
def beside(experiment: Experiment, folder: Path, flags: Sequence[str] = (), prefix: str = "") -> Iterator[list[str]]:
    """Within the block they run; it gets the names of those that were started. Logs go to `folder`/services, with
    `prefix` before their names. Raises UserError."""
    companions = wanted(experiment, flags, os.environ)
    with ExitStack() as stack:
        running = [
            RunningCompanion(name, each, experiment.base, folder / "services" / f"{prefix}{name}.log")
            for name, each in companions.items()
        ]
        for each in running:
            each.require()
        for each in running:
            stack.callback(each.close)
            each.start()
        for each in running:
            each.wait()
        stack.enter_context(Restarts([(each, each.restarts) for each in running if each.started]).watching())
        yield [each.name for each in running if each.started]


class RunningCompanion:
    """A companion process that was started."""

    def __init__(self, name: str, companion: Companion, base: Path, log: Path) -> None:
        self.name, self._companion, self._base, self._log = name, companion, base, log
        self._keeper: subprocess.Popen[bytes] | None = None
        self._cell: Cell | None = None
        """The sandbox of one that is confined."""
        self._heard = 0
        """Bytes of the log before which its sign is not to be looked for again."""
        self._report: int | None = None
        """Where its keeper reports; None: nothing is to be read."""
        self._ended: dict[str, Any] = {}
        """What it reported."""
        self.restarts, self.timeout = companion.restarts, companion.timeout

    def require(self) -> None:
        """Raises UserError where it cannot be started as it is asked for."""
        from ajet.run.confined import require_confinable

        if not self._folder.is_dir() and not self._answers():
            where = f"ajet.services.{self.name}.cwd"
            raise UserError(f"The service {self.name} has no folder {self._folder}.", where=where)
        require_confinable(self.name, self._companion, self._folder)

    @property
    def _folder(self) -> Path:
        return (self._base / Path(self._companion.cwd or ".").expanduser()).resolve()

    def start(self) -> None:
        """Begin, unless it is there already. Raises UserError."""
        self._begin(anew=True)

    def start_again(self) -> None:
        """After its end; what it prints follows what it printed. Raises UserError."""
        self.close()
        self._keeper, self._ended, self._heard = None, {}, self._log.stat().st_size
        self._begin(anew=False)

    def _begin(self, *, anew: bool) -> None:
        if self._answers():
            ready = self._companion.ready
            logger.info("the service {} answers at {} already: it is used as it is", self.name, ready)
            return
        self.require()
        folder, command = self._folder, self._companion.command
        arguments = shlex.split(command) if isinstance(command, str) else list(command)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        environment = {**os.environ, "PATH": paths, "PYTHONUNBUFFERED": "1", **self._companion.env}
        if self._companion.confined:
            self._cell = self._new_cell(arguments, folder)
            environment = {}  # what starts the sandbox is its first process, whose variables can be read inside
        wall = self._cell.walled if self._cell is not None else Walled(arguments, (), None)
        report, theirs = os.pipe()
        try:
            if anew:
                self._log.write_bytes(b"")
            with self._log.open("ab") as log:  # so that whoever shortens it does not leave a hole
                self._keeper = subprocess.Popen(
                    [sys.executable, "-I", "-S", keeper.__file__, str(theirs)],
                    stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, pass_fds=(theirs, *wall.descriptors),
                    start_new_session=True, env=environment, user=wall.user, group=wall.user,
                    extra_groups=None if wall.user is None else [],
                )  # fmt: skip
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(theirs)
            if self._cell is not None:
                self._cell.begun()
                if self._keeper is None:
                    self._end_cell()
        os.set_blocking(report, False)
        self._report = report
        order: dict[str, Any] = {
            "command": wall.argv,
            "folder": "/" if self._cell is not None else str(folder),
            "limits": {},
            "timeout": None,
            "grace": GRACE_S,
            "measured": False,
        }
        assert self._keeper.stdin is not None
        with suppress(BrokenPipeError):  # `wait` says how it ended
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()
        logger.info("starting the service {}: {}", self.name, shlex.join(arguments))

    def _new_cell(self, arguments: list[str], folder: Path) -> Cell:
        from ajet.run.confined import Cell

        try:
            return Cell(self._companion, arguments, folder)
        except (OSError, SandboxFailure) as problem:
            raise UserError(
                f"The service {self.name} cannot be confined: {problem}.",
                where=f"ajet.services.{self.name}",
                do="see that nobody else has its port, and that TMPDIR is a folder with a short path",
            ) from problem

    def wait(self) -> None:
        """Until it is ready. Raises UserError."""
        if self._keeper is None:
            return
        until = time.monotonic() + self._companion.timeout
        while not self.is_ready():
            if self.is_over():
                raise self._failure(f"The service {self.name} ended before it was ready{self._how()}.")
            if self._cell is not None and self._cell.taken:
                raise self._failure(f"The port of the service {self.name} cannot be had: {self._cell.taken}.")
            if time.monotonic() > until:
                raise self._failure(
                    f"The service {self.name} was not ready within {self._companion.timeout:g} s.",
                    expected=f"{self._companion.ready} {'to answer' if self._by_address else 'to be printed'}",
                )
            time.sleep(LOOK_S)
        if self.is_over():  # what answers is not this one
            raise self._failure(f"The service {self.name} ended before it was ready{self._how()}.")

    def require_running(self) -> None:
        """Raises UserError where it is over."""
        if self.is_over():
            raise self._failure(f"The service {self.name} ended{self._how()}.")

    @property
    def started(self) -> bool:
        """Whether it is ours: what answered before is not."""
        return self._keeper is not None

    def close(self) -> None:
        """End it with all that it started. Idempotent."""
        if self._keeper is None or self._keeper.stdin is None or self._keeper.stdin.closed:
            return
        with suppress(BrokenPipeError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(GRACE_S + 15)
        except subprocess.TimeoutExpired:
            logger.warning("the service {} does not end", self.name)
        else:  # a keeper that was killed is gone before what it kept is
            if self._report is not None:
                _readable(self._report, GRACE_S + 15)
        self._end_cell()
        self._how()

    def _end_cell(self) -> None:
        if self._cell is not None:
            self._cell.close()
            self._cell = None

    def _answers(self) -> bool:
        return self._by_address and not why_not(str(self._companion.ready))

    @property
    def _by_address(self) -> bool:
        return _is_address(self._companion.ready)

    def is_ready(self) -> bool:
        """Whether it has said so, or answers."""
        ready = self._companion.ready
        if not ready:
            return True
        if self._cell is not None and not self._cell.open:
            return False  # what answers is another run's
        if self._by_address:
            return self._answers()
        wanted = ready.encode()
        with self._log.open("rb") as log:
            log.seek(self._heard)
            fresh = log.read()
        self._heard = max(self._heard, self._heard + len(fresh) - len(wanted) + 1)
        return wanted in fresh

    def is_over(self) -> bool:
        """Whether what was started has ended, all of it: its keeper's report is then there, or will never be."""
        if self._keeper is None or self._keeper.poll() is None:
            return False
        return self._report is None or _readable(self._report, 0)

    def ended_well(self) -> bool:
        """Whether it had done what it was to do. Of one that is over."""
        self._how()
        return self._ended.get("code") == 0

    def how(self) -> str:
        """The end of one that is over, as a sentence goes on: " with code 3"; and its last line."""
        last = next((line.strip() for line in reversed(self._last_lines()) if line.strip()), "")
        return f"{self._how()}{f' ({last[:200]})' if last else ''}"

    def _how(self) -> str:
        if self._report is not None and self.is_over():
            said, report, self._report = b"", self._report, None  # read once: another file gets its number
            with suppress(BlockingIOError):
                said = os.read(report, 1 << 16)
            os.close(report)
            self._ended = json.loads(said or b'{"code": null}')
        if self._ended.get("problem"):
            return f": {self._ended['problem']}"
        return f" with code {self._ended['code']}" if self._ended.get("code") is not None else ""

    def _last_lines(self) -> list[str]:
        """The last lines of its log, which may be long by now."""
        with self._log.open("rb") as log:
            return read_tail(log, READ).decode(errors="replace").splitlines()

    def _failure(self, what: str, expected: str = "") -> UserError:
        lines = self._last_lines()[-SHOWN:]
        told = "".join(f"\n    {line[:300]}" for line in lines)
        return UserError(
            what,
            where=f"ajet.services.{self.name}{told}",
            expected=expected,
            do="run its command by hand in its folder, and look at what it prints",
        )


def _readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read, or its end, within that time; the descriptor may be any number, as that of
    one that is started again in a busy run is."""
    asked = select.poll()
    asked.register(descriptor, select.POLLIN)
    return bool(asked.poll(seconds * 1000))


def _is_address(ready: str | None) -> bool:
    return ready is not None and ready.startswith(("http://", "https://", "tcp://"))


def why_not(address: str, seconds: float = ASK_S) -> str:
    """An empty string where something answers at http://… or tcp://HOST:PORT, else why not. Any answer over HTTP but a
    failure of the server (5xx) will do."""
    try:
        place = urlsplit(address)
        if place.scheme == "tcp":
            socket.create_connection((place.hostname, place.port), seconds).close()
            return ""
        # no proxy: a companion is on this machine, or named by an address of its own
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(address, timeout=seconds).close()
    except urllib.error.HTTPError as answer:
        return f"it answers {answer.code}" if answer.code >= 500 else ""
    except (OSError, ValueError) as problem:
        return str(getattr(problem, "reason", problem))
    return ""
