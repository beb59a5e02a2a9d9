"""The run that a person means: by its folder, or by its name below the record.

Invariant: a folder that holds what is looked for is taken before a name.
"""

from __future__ import annotations

from pathlib import Path


def run_folder(named: str, root: Path, *, holding: str) -> Path:
    """`named` itself if it is a folder with `holding` in it, else the run of that name below `root`, be it there or
    not."""
    return Path(named) if Path(named, holding).exists() else root / named
