"""vLLM's processes end with the one that started them, also when that one is killed.

Invariant: the owner is a process id that the operating system tells us about by a handle, so that an id given to
somebody else later is never mistaken for it. Linux only, as vLLM is.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress

VARIABLE = "AJET_VLLM_OWNER"
"""Environment variable that carries the owner's process id to the worker."""


def end_with_owner() -> None:
    """Watch the owner from the worker; when it is gone, end the engine's core and this process. The core is our parent,
    or this very process."""
    owner = os.environ.get(VARIABLE)
    if owner is None:
        return
    parent = os.getppid()
    core = None if parent == int(owner) else parent
    try:
        handle = os.pidfd_open(int(owner))
    except ProcessLookupError:
        _end_processes(core)
    else:
        threading.Thread(target=_wait_for_owner, args=(handle, core), name="ajet-owner", daemon=True).start()


def _wait_for_owner(handle: int, core: int | None) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
    _end_processes(core)


def _end_processes(core: int | None) -> None:
    if core is not None and os.getppid() == core:
        with suppress(ProcessLookupError):
            os.kill(core, signal.SIGKILL)
    os._exit(1)
