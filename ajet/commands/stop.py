"""`ajet stop RUN` and `--kill`: end the processes of runs, by recorded process id and start time.

Invariant (DESIGN decision 15): a process is ended only if id, start, boot and process namespace equal a run's record in
`status.json`, never by name. A run of another machine or container is not reported as ended.
"""

from __future__ import annotations

import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ajet.record.console import print_line
from ajet.record.files import read_rows
from ajet.record.find_run import require_run
from ajet.record.run_place import OTHER_RUN_FOLDERS
from ajet.record.status import read_status, recorded_processes
from ajet.schema.errors import UserError

PATIENCE_S = 60.0
"""Seconds for a run to save a checkpoint, beyond two steps of the run, before the run is killed."""

RUN_PATTERNS = ("*/status.json", *(f"*/{kind}/*/status.json" for kind in sorted(OTHER_RUN_FOLDERS)))
"""Patterns of the status files of runs."""


def stop(run: str, root: Path, *, patience_s: float | None = None) -> int:
    """Interrupt the run as Ctrl-C would, wait for its checkpoint, then end the remaining processes. Return exit code 0.

    Args:
        run: Name or folder of the run.
        root: Folder of all runs.
        patience_s: Seconds to wait. None: `PATIENCE_S` and two steps of the run.

    Raises:
        UserError: The run is unknown, or runs on another machine.
    """
    folder = require_run(run, root, holding="status.json", expected="the folder of a run, with a status.json")
    refuse_remote(folder)
    processes = list_processes(folder)
    if not processes:
        print_line(f"The run {folder.name} is not in progress.")
        return 0
    children = [child for process in processes for child in _list_children(process)]
    for process in list_processes(folder, role="run") or processes:  # child processes end with the run
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)
    alive = _wait_for_end(processes, _find_patience(folder) if patience_s is None else patience_s)
    _end_processes(alive + [child for child in children if _is_alive(child)])
    stopped = f"{folder.name} was stopped" + (" by SIGKILL, because it did not react to SIGTERM." if alive else ".")
    print_line(stopped)
    return 0


def kill(names: str | None, root: Path) -> int:
    """End every run below `root` with a name in `names` ("a|b"), or all for None. Return the exit code 0.

    A name without a run, or with an ended run, is printed and is no error, since a launch may follow.

    Raises:
        UserError: A run cannot be ended from this machine. Raised after ending the others.
    """
    requested = {name for name in (names or "").split("|") if name}
    folders = [path.parent for pattern in RUN_PATTERNS for path in sorted(root.glob(pattern))]
    runs = {folder.relative_to(root).as_posix(): folder for folder in folders}
    for name in sorted(requested - runs.keys()):
        print_line(f"The folder {root} contains no run named {name}.")
    errors = []
    for name, folder in runs.items():
        try:
            if name in requested or (not requested and list_processes(folder)):
                stop(str(folder), root, patience_s=5.0)
        except UserError as error:
            errors.append(error)
    for further_error in errors[1:]:
        print_line(further_error.what)
    if errors:
        raise errors[0]
    return 0


def refuse_remote(folder: Path) -> None:
    """Raise UserError if the run is unfinished and its process is on another machine or in a container."""
    status = read_status(folder) or {}
    if status.get("outcome"):
        return
    for process, role in recorded_processes(status):
        if role == "run" and process.place == "elsewhere":
            hostname = socket.gethostname()
            raise UserError(
                f"The run {folder.name} does not run on this machine or in this container: it is {process}.",
                where=str(folder / "status.json"),
                expected=f"a run on {hostname}"
                + (", outside of separate containers" if process.host == hostname else ""),
                do=f"run `ajet stop {folder.name}` on that machine",
            )


def list_processes(folder: Path, *, role: str | None = None) -> list[psutil.Process]:
    """Return the living processes of a run that are visible from here. Raises UserError if the status is damaged.

    Args:
        role: Only processes of this role, such as "run". None: all.
    """
    recorded = recorded_processes(read_status(folder) or {})
    processes = [identity.process() for identity, process_role in recorded if role is None or process_role == role]
    return [process for process in processes if process is not None]


def _find_patience(folder: Path) -> float:
    """Return the seconds to wait for a run's checkpoint: two of its longest steps, and `PATIENCE_S`."""
    longest_step = 0.0
    with suppress(UserError):  # a damaged record is no reason not to stop
        longest_step = max((row.get("seconds/step") or 0.0 for row in read_rows(folder / "metrics.jsonl")), default=0.0)
    return PATIENCE_S + 2 * longest_step


def _is_alive(process: psutil.Process) -> bool:
    """Return True if the process lives. A zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_for_end(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait at most `seconds` until all processes have ended, and return those still alive."""
    deadline = time.monotonic() + seconds
    while (alive := [process for process in processes if _is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def _list_children(process: psutil.Process) -> list[psutil.Process]:
    """Return all descendants of a process, or [] if it has ended."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _end_processes(processes: list[psutil.Process]) -> None:
    """Send SIGTERM to the processes, and SIGKILL to those alive after 5 seconds."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in _wait_for_end(processes, 5.0):
        with suppress(psutil.NoSuchProcess):
            process.kill()
