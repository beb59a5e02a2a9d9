"""The process of one call: a fork of the resident that runs code or a command.

Invariants: the fork holds only its three descriptors. Limits and confinement are set before any untrusted code runs.
The fork never returns to the resident's code.
"""

# ruff: noqa: SIM115
from __future__ import annotations

import _signal  # unlike `signal`, `_signal` creates no enumerations; each page touched by a fork takes time
import gc
import os
import resource
import sys

from ajet_sandbox.inside import kernel

TYPE_CHECKING = False  # importing `typing` takes longer than a call
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_IGNORED = (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ)
"""Signals ignored by Python itself, or by the resident."""


def run_call(
    order: Mapping[str, Any], settings: Mapping[str, Any], ends: tuple[int, int, int], blobs: list[bytes]
) -> None:
    """Run one call in this forked process, and exit with its code. Never returns.

    Args:
        order: the host's request: command, variables and limits.
        settings: settings of the sandbox.
        ends: descriptors of standard input, output and error.
        blobs: standard input, and the code if there is no command.
    """
    code = 126
    try:
        take_descriptors(ends)
        prepare_process(order, settings)
        environment = {**settings["environment"], **order["environment"]}
        if order["argv"]:
            _execute_command(order["argv"], environment)
        os.environ.clear()
        os.environ.update(environment)
        code = run_code(blobs[1], {"__name__": "__main__", "__builtins__": __builtins__})
    except BaseException as error:  # noqa: BLE001 - the end of a process
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(code)


def take_descriptors(ends: tuple[int, int, int]) -> None:
    """Make the three descriptors standard input, output and error, and close all others."""
    # Copies have other numbers than 0 to 2, so that `dup2` overwrites none before it is read.
    copies = [os.dup(descriptor) for descriptor in ends]
    for target_fd, copy in enumerate(copies):
        os.dup2(copy, target_fd)
    os.closerange(3, 1 << 16)


def prepare_process(order: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Prepare the process of a call: a session of its own, default signals, working folder, limits and confinement.

    Args:
        order: the host's request with the limits.
        settings: settings of the sandbox: folder, Landlock paths, and filter of system calls.
    """
    os.setsid()
    for signal_number in _IGNORED:
        _signal.signal(signal_number, _signal.SIG_DFL)
    kernel.prctl(kernel.SET_DUMPABLE, 1)
    try:
        score_fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score_fd, b"1000")
        os.close(score_fd)
    except OSError:
        pass  # only a preference: if memory runs out, the kernel kills the call before the resident
    os.chdir(settings["folder"])
    os.umask(0o022)
    _set_limit(resource.RLIMIT_AS, order["memory"])
    _set_limit(resource.RLIMIT_FSIZE, order["file_size"])
    _set_limit(resource.RLIMIT_NPROC, order["processes"])
    _set_limit(resource.RLIMIT_NOFILE, order["files"])
    _set_limit(resource.RLIMIT_CORE, 0)
    if not order["keep"]:  # the session of stateful calls sets the limit for each call
        _set_limit(resource.RLIMIT_CPU, order["cpu"], later=1)
    confinement = settings["landlock"]
    if confinement:
        kernel.apply_landlock(*confinement)
    if settings["filter"]:
        kernel.load_filter(settings["filter"])


def _set_limit(name: int, limit: int, later: int = 0) -> None:
    """Set a resource limit of this process.

    Args:
        name: a RLIMIT constant.
        limit: soft limit, which sends a signal.
        later: added for the hard limit, which kills.
    """
    present = resource.getrlimit(name)[1]
    hard = limit + later if present == resource.RLIM_INFINITY else min(limit + later, present)
    resource.setrlimit(name, (min(limit, hard), hard))


def _execute_command(argv: list[str], environment: dict[str, str]) -> None:
    """Replace this process by the command. If that fails, print the reason and exit with 127, as a shell does."""
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def run_code(source: bytes, names: dict[str, Any], *, keeps_threads: bool = False) -> int:
    """Run Python code as `__main__` and return the exit code.

    Args:
        names: global names of the code.
        keeps_threads: True if the code's threads may continue, as in a stateful session.
    """
    gc.enable()
    sys.argv = ["-"]
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)
    code = 0
    try:
        exec(compile(source, "<code>", "exec"), names)
    except SystemExit as exit_request:
        code = _read_exit_code(exit_request)
    except BaseException as error:  # noqa: BLE001 - the border of user code
        traceback = error.__traceback__
        # Without the first frame, which is the `exec` above.
        user_error = error.with_traceback(traceback.tb_next if traceback is not None else None)
        sys.excepthook(type(error), user_error, user_error.__traceback__)
        code = 1
    try:
        if "threading" in sys.modules and not keeps_threads:
            sys.modules["threading"]._shutdown()
        sys.stdout.flush()
    except (OSError, ValueError):
        pass
    return code


def _read_exit_code(ending: SystemExit) -> int:
    """Return the exit code of `sys.exit(code)`; a text is printed and counts as 1, as in Python."""
    if ending.code is None or isinstance(ending.code, int):
        return (ending.code or 0) & 0xFF
    sys.stderr.write(f"{ending.code}\n")
    return 1
