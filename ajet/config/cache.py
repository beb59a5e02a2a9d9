"""Where ajet keeps what it made for later runs: models, tools of servers, corpora."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_root() -> Path:
    """AJET_CACHE, else `ajet` in XDG_CACHE_HOME, else ~/.cache/ajet."""
    own = os.environ.get("AJET_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ajet"


def explain_unwritable_cache() -> str:
    """Return why nothing can be kept in the cache, what that means, and what to do; "" if it can be written to."""
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return ""
    except OSError as problem:
        return (
            f"the cache {root} cannot be written to ({problem.strerror}): nothing is kept for later runs, and models "
            "that are downloaded or converted are refused. Set AJET_CACHE to a folder that this user may write to"
        )
