"""`ajet stop RUN` and `--kill`: end what earlier runs started, by recorded process id and start time.

Invariant (DESIGN decision 15): a process is touched only when it is the one that a run recorded in `status.json`, by
id, start, boot and process namespace; nothing is ever ended by matching a name. A run that cannot be seen from here is
not said to be over.
"""

from __future__ import annotations

import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ajet.record.console import console
from ajet.record.files import read_rows
from ajet.record.find_run import known_run
from ajet.record.run_place import OF_OTHERS
from ajet.record.status import read_status, recorded_processes
from ajet.schema.errors import UserError

PATIENCE_S = 60.0
"""How long a run may take to save its checkpoint after the interrupt, beyond two of its steps, before it is ended
hard."""

OF_RUNS = ("*/status.json", *(f"*/{kind}/*/status.json" for kind in sorted(OF_OTHERS)))
"""Where runs say what they do."""


def stop(run: str, root: Path, *, patience_s: float | None = None) -> int:
    """Interrupt the run as Ctrl-C would (it saves a checkpoint), wait, then end what is left of it. Raises
    UserError, for a run that goes on where it cannot be reached from here too."""
    folder = known_run(run, root, holding="status.json", expected="a folder with a status.json")
    refuse_elsewhere(folder)
    processes = living(folder)
    if not processes:
        console.print(f"{folder.name} is not running.", markup=False, soft_wrap=True)
        return 0
    children = [child for process in processes for child in _children(process)]
    for process in living(folder, role="run") or processes:  # the others are its own, and end with it
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)
    alive = _wait(processes, _patience(folder) if patience_s is None else patience_s)
    _end(alive + [child for child in children if _lives(child)])
    stopped = f"{folder.name} was stopped" + (" hard: it did not answer." if alive else ".")
    console.print(stopped, markup=False, soft_wrap=True)
    return 0


def kill(names: str | None, root: Path) -> int:
    """End every recorded run below `root` whose name is in `names` ("a|b"), or all of them for None, those that serve,
    debug and evaluate too. Exit code 0: a name that no run has, or whose run is over, is said and is no error, as a
    launch may follow. Raises UserError for the first that cannot be ended from here, once the others are."""
    wanted = {name for name in (names or "").split("|") if name}
    folders = [path.parent for each in OF_RUNS for path in sorted(root.glob(each))]
    found = {folder.relative_to(root).as_posix(): folder for folder in folders}
    for name in sorted(wanted - found.keys()):
        console.print(f"There is no run named {name} in {root}.", markup=False, soft_wrap=True)
    problems = []
    for name, folder in found.items():
        try:
            if name in wanted or (not wanted and living(folder)):
                stop(str(folder), root, patience_s=5.0)
        except UserError as problem:
            problems.append(problem)
    for other in problems[1:]:
        console.print(other.what, markup=False, soft_wrap=True)
    if problems:
        raise problems[0]
    return 0


def refuse_elsewhere(folder: Path) -> None:
    """Raises UserError for a run that has not ended and whose process is out of sight."""
    status = read_status(folder) or {}
    if status.get("outcome"):
        return
    for process, role in recorded_processes(status):
        if role == "run" and process.place == "elsewhere":
            here = socket.gethostname()
            raise UserError(
                f"{folder.name} is not of this machine or container: it is {process}.",
                where=str(folder / "status.json"),
                expected=f"a run on {here}" + (", outside of containers of its own" if process.host == here else ""),
                do=f"run `ajet stop {folder.name}` there",
            )


def living(folder: Path, *, role: str | None = None) -> list[psutil.Process]:
    """The still living processes of the run in `folder`, or those of one role. Raises UserError for a damaged
    status."""
    named = recorded_processes(read_status(folder) or {})
    found = [identity.process() for identity, its in named if role is None or its == role]
    return [process for process in found if process is not None]


def _patience(folder: Path) -> float:
    longest = 0.0
    with suppress(UserError):  # a damaged record is no reason not to stop
        longest = max((row.get("seconds/step") or 0.0 for row in read_rows(folder / "metrics.jsonl")), default=0.0)
    return PATIENCE_S + 2 * longest


def _lives(process: psutil.Process) -> bool:
    """False too for one that has ended and that its parent has not looked at yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """The processes that still live after at most `seconds`."""
    end = time.monotonic() + seconds
    while (alive := [process for process in processes if _lives(process)]) and time.monotonic() < end:
        time.sleep(0.1)
    return alive


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in _wait(processes, 5.0):
        with suppress(psutil.NoSuchProcess):
            process.kill()
