"""Where vLLM's sockets lie: it leaves them behind when one of its processes is killed, so we take them away.

Invariant: one folder a process (vLLM asks for its place once), there while an engine is open, gone with the last one.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from functools import cache
from pathlib import Path

VARIABLE = "VLLM_RPC_BASE_PATH"
"""vLLM's environment variable for it."""
_lock = threading.Lock()
_open = 0


@cache
def folder() -> Path:
    """This process's own."""
    return Path(tempfile.gettempdir(), f"ajet-vllm-{secrets.token_hex(6)}")


def opened() -> None:
    """Count one more engine."""
    global _open
    with _lock:
        _open += 1
        folder().mkdir(mode=0o700, exist_ok=True)


def closed() -> None:
    """Count one engine less, whose processes are gone."""
    global _open
    with _lock:
        _open -= 1
        if _open == 0:
            shutil.rmtree(folder(), ignore_errors=True)
