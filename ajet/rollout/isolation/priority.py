"""Priority: workers give way to the process that started them.

A machine of two cores may have two hundred agents, and each of them waits for the gateway: where all want the processor
at once, the gateway, and with it the engine and the trainer, comes first. Invariant: a worker's priority is `YIELDS`
below that of this process, or the lowest there is; nothing is slower where nobody else wants the processor.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

YIELDS = 10
"""Steps ("nice"), of which each takes about a fifth of a process's share; the lowest is 19."""
_TRIES, _PAUSE_S = 10, 0.1
"""Linux takes a change of a group's priority from users other than root ten times a second, whoever asks."""


def give_way(process: int) -> None:
    """Lower the priority of a process that was just started, and of all that it starts from now on."""
    with suppress(ProcessLookupError):  # it has ended: its output says why
        os.setpriority(os.PRIO_PROCESS, process, min(os.getpriority(os.PRIO_PROCESS, 0) + YIELDS, 19))


def session_gives_way(process: int) -> None:
    """Lower the priority of all processes of its session. Linux may share the processor between sessions before it
    looks at priorities within one (`sched_autogroup_enabled`): then a session of low priority counts as much as any
    other."""
    group = Path(f"/proc/{process}/autogroup")
    if not group.exists():
        return
    for _ in range(_TRIES):
        try:
            group.write_text(str(YIELDS))
            return
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        except OSError:  # it has ended, or /proc is only to be read: it gives way within its session alone
            return
