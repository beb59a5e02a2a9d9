"""The current time, in any time zone.

Invariant: zones have IANA names; an unknown zone is an error, never UTC.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from .settings import Settings
from .tool import Function, ToolError

Zone = Annotated[str, Field(description="IANA's name, as Europe/Berlin or UTC")]


def get_current_time(timezone: Zone) -> dict[str, Any]:
    """The current time in a zone."""
    return _describe_moment(datetime.now(_find_zone(timezone)), timezone)


def convert_time(
    source_timezone: Zone,
    time: Annotated[str, Field(description="today's, as 18:30")],
    target_timezone: Zone,
) -> dict[str, Any]:
    """Convert a time in one zone to another zone."""
    match = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", time.strip())
    if match is None:
        raise ToolError(f"{time[:20]} is not a time, for instance 18:30")
    hour, minute = map(int, match.groups())
    now = datetime.now(_find_zone(source_timezone))
    source = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    target = source.astimezone(_find_zone(target_timezone))
    # utcoffset() may be None by its type; `source - source` is a zero duration.
    hour_difference = (
        (target.utcoffset() or source - source) - (source.utcoffset() or source - source)
    ).total_seconds() / 3600
    return {
        "source": _describe_moment(source, source_timezone),
        "target": _describe_moment(target, target_timezone),
        "time_difference": f"{hour_difference:+g}h",
    }


def tools(settings: Settings) -> list[Function]:
    return [get_current_time, convert_time]


def _find_zone(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name. Raises ToolError for an unknown name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError(f"there is no time zone {name[:60]}") from None


def _describe_moment(moment: datetime, zone: str) -> dict[str, Any]:
    """Return a time as a tool's answer: zone, ISO time, day of the week, daylight saving time."""
    return {
        "timezone": zone,
        "datetime": moment.isoformat(timespec="seconds"),
        "day_of_week": moment.strftime("%A"),
        "is_dst": bool(moment.dst()),
    }
