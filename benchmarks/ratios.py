"""Where a benchmark's ratios are judged, and kept for scripts/bench.py.

Invariant: a value is kept as it was measured, whether its limit holds or not; without `AJET_RATIOS` nothing is written.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

VARIABLE = "AJET_RATIOS"
"""Names the file of JSON lines that scripts/bench.py reads."""


def kept(name: str, value: float, *, at_most: float | None = None, at_least: float | None = None) -> bool:
    """Whether it is within its limit; one without a limit is printed by the benchmark and never fails it. `name` says
    what is compared, and stays the same from version to version."""
    within = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    if file := os.environ.get(VARIABLE):
        row = {"bench": Path(sys.argv[0]).stem, "name": name, "value": value, "at_most": at_most, "at_least": at_least}
        with open(file, "a") as out:
            out.write(json.dumps(row) + "\n")
    return within
