"""The metrics that a run may write.

Their source is ajet/record/metric_definitions.py: the names are written in twenty modules, and
tests/docs/test_metrics_page.py compares the definitions with what these modules write, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ajet.record.metric_definitions import list_metric_definitions


def list_metrics(root: Path) -> Iterator[str]:
    """Yield every name; words in capitals stand for any name."""
    for metric in list_metric_definitions():
        yield from metric.names
