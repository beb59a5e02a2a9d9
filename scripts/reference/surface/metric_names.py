"""The metrics that a run may write.

Their source is the tables of docs/metrics.md: the names are written in twenty modules, and
tests/docs/test_metrics_page.py holds the tables to what these modules write, in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


def list_metrics(root: Path) -> Iterator[str]:
    """Yield the names in the first column of the page's tables; words in capitals stand for any name."""
    page = (root / "docs" / "metrics.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| (`[^|]+`) \|", page, re.M):
        yield from re.findall(r"`([^`]+)`", row)
