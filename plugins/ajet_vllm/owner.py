"""Ends vLLM's processes with the process that started them, even after a kill.

Invariant: the owner is watched by a pidfd handle, so a reused process id is never mistaken for the owner. Linux only,
like vLLM.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress

VARIABLE = "AJET_VLLM_OWNER"
"""Environment variable with the owner's process id, read by the worker."""


def end_with_owner() -> None:
    """Watch the process that started vLLM from a thread, and after its end kill vLLM's core and this process.

    The core is vLLM's process that schedules requests: this process's parent, or this process itself. Does nothing if
    ajet did not start vLLM.
    """
    owner = os.environ.get(VARIABLE)
    if owner is None:
        return
    parent = os.getppid()
    core = None if parent == int(owner) else parent  # None: this process is the core
    try:
        handle = os.pidfd_open(int(owner))
    except ProcessLookupError:  # the owner has ended already
        _end_processes(core)
    else:
        threading.Thread(target=_wait_for_owner, args=(handle, core), name="ajet-owner", daemon=True).start()


def _wait_for_owner(handle: int, core: int | None) -> None:
    """Block until the owner has ended, then end vLLM's processes.

    Args:
        handle: pidfd of the owner.
        core: process id of vLLM's core, or None if it is this process.
    """
    poll = select.poll()
    poll.register(handle, select.POLLIN)  # a pidfd is readable once its process has ended
    poll.poll()
    _end_processes(core)


def _end_processes(core: int | None) -> None:
    """Kill vLLM's core if it is still this process's parent, and end this process without cleanup."""
    if core is not None and os.getppid() == core:
        with suppress(ProcessLookupError):
            os.kill(core, signal.SIGKILL)
    os._exit(1)
