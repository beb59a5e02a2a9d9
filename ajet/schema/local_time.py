"""The day that a moment was on, where it was played: templates write it into prompts, and they are proven elsewhere."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta, timezone


def utc_offset(at: float) -> int:
    """Seconds by which this process's local time was ahead of UTC at `at`, in seconds since the epoch."""
    return time.localtime(at).tm_gmtoff


def day_of(at: float, offset: int) -> date:
    """The day of `at` where local time was `offset` seconds ahead of UTC."""
    return datetime.fromtimestamp(at, timezone(timedelta(seconds=offset))).date()
