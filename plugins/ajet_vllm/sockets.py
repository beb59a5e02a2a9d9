"""The folder of vLLM's sockets; vLLM leaves sockets behind after a kill, so ajet removes the folder.

Invariant: each process has one folder (vLLM reads the path once). The folder exists while an engine is open.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from functools import cache
from pathlib import Path

VARIABLE = "VLLM_RPC_BASE_PATH"
"""vLLM's environment variable for the folder."""
_lock = threading.Lock()
_open = 0


@cache
def folder() -> Path:
    """Return the path of this process's folder for vLLM's sockets: a random name, the same in each call.

    The folder exists while an engine is open.
    """
    return Path(tempfile.gettempdir(), f"ajet-vllm-{secrets.token_hex(6)}")


def opened() -> None:
    """Count one more open engine, and create the folder of sockets if it is missing."""
    global _open
    with _lock:
        _open += 1
        folder().mkdir(mode=0o700, exist_ok=True)


def closed() -> None:
    """Count one open engine less, after its processes have ended. The last one removes the folder of sockets."""
    global _open
    with _lock:
        _open -= 1
        if _open == 0:
            shutil.rmtree(folder(), ignore_errors=True)
