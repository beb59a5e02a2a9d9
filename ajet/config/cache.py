"""Where ajet keeps what it made for later runs: models, tools of servers, corpora."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """AJET_CACHE, else `ajet` in XDG_CACHE_HOME, else ~/.cache/ajet."""
    own = os.environ.get("AJET_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ajet"
