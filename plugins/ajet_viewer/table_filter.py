"""Filters and sorts the episode table.

Invariant: an unreadable condition is an error (status 400) with its name, never ignored. Text is searched in the row
first, then in the episode's line without images.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ajet.record.image_text import without_images
from ajet.schema.errors import AjetError
from ajet_viewer.episode_table import EpisodeLinePlace, EpisodeTable, read_line

SORTS = ("step", "task", "reward", "advantage", "calls", "tokens", "forks", "seconds", "status", "split", "repeat")
LIMIT = 1000
MOST_DIGITS = 18
"""Maximum number of digits of an integer in a request."""


class FilterError(AjetError, ValueError):
    """A condition in a request cannot be parsed."""


@dataclass(frozen=True, slots=True)
class TableFilter:
    """The conditions, order and window of rows in a request. None and "" stand for no condition.

    Ranges include both ends.
    """

    step: tuple[int, int] | None = None
    split: str = ""
    task: str = ""
    status: str = ""
    agent: str = ""
    reward: tuple[float, float] | None = None
    text: str = ""
    sort: str = "step"
    descending: bool = True
    offset: int = 0
    limit: int = 100

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> TableFilter:
        """Parse a URL query, such as step=3 or step=3..9, reward=..0.5, sort=-reward.

        Raises:
            FilterError: a condition is unknown or cannot be parsed.
        """
        unknown = set(query) - {
            *("step", "split", "task", "status", "agent", "reward", "text", "sort", "offset", "limit", "key")
        }
        if unknown:
            raise FilterError(f"there is no condition named {sorted(unknown)[0]}")
        sort = query.get("sort") or "-step"
        if sort.lstrip("-") not in SORTS:
            raise FilterError(f"sort: one of {', '.join(SORTS)}, with a leading - for largest first")
        step = _parse_range(query, "step")
        return cls(
            # Bounds of a step range may be infinite, which int() refuses.
            step=None if step is None else (int(max(step[0], -1)), int(min(step[1], 1 << 62))),
            reward=_parse_range(query, "reward"),
            sort=sort.lstrip("-"),
            descending=sort.startswith("-"),
            offset=_parse_count(query, "offset", 0, 1 << 40),
            limit=_parse_count(query, "limit", 100, LIMIT),
            **{name: query.get(name, "") for name in ("split", "task", "status", "agent", "text")},
        )

    def admits(self, row: Mapping[str, Any]) -> bool:
        """True if a row meets all conditions except that on the text, which needs the episode's line."""
        reward = row["reward"]
        return (
            (self.step is None or self.step[0] <= row["step"] <= self.step[1])
            and (not self.split or row["split"] == self.split)
            and (not self.task or row["task"] == self.task)
            and (not self.status or self.status in (row["status"], "no score" if reward is None else ""))
            and (not self.agent or self.agent in row["agents"])
            and (self.reward is None or (reward is not None and self.reward[0] <= reward <= self.reward[1]))
        )


def select_rows(table: EpisodeTable, wanted: TableFilter) -> dict[str, Any]:
    """Return the requested window of the rows that match.

    Returns:
        rows: the rows. total: number of matching rows. complete: True if all files were read. pending: number of unread
        files. damaged: number of lines that cannot be read.
    """
    text = wanted.text.casefold()
    matches = [
        row
        for row, line_place in table.rows()
        if wanted.admits(row) and (not text or _is_in_row(row, text) or _is_in_line(line_place, text))
    ]
    window = _sort_rows(matches, wanted)[wanted.offset : wanted.offset + wanted.limit]
    state = {"complete": table.is_complete, "pending": table.pending, "damaged": table.damaged}
    return {"rows": window, "total": len(matches), **state}


def _sort_rows(rows: list[dict[str, Any]], wanted: TableFilter) -> list[dict[str, Any]]:
    """Sort rows by the requested column. Rows without a value come last in both directions."""
    # The table's rows have this order already.
    if wanted.sort == "step" and wanted.descending:
        return rows

    def make_sort_key(row: dict[str, Any]) -> tuple[bool, Any]:
        """Return the sort key of a row, by which a missing value comes last in both directions."""
        value = row[wanted.sort]
        return (value is None) != wanted.descending, 0 if value is None else value

    window_end = wanted.offset + wanted.limit
    # Selecting a small window is faster than sorting all rows.
    if window_end * 10 < len(rows):
        return (heapq.nlargest if wanted.descending else heapq.nsmallest)(window_end, rows, key=make_sort_key)
    return sorted(rows, key=make_sort_key, reverse=wanted.descending)


def _is_in_row(row: Mapping[str, Any], text: str) -> bool:
    """True if a row's question, task, uuid, failure, agents or checks contain a casefolded text."""
    fields: Iterable[str] = (row["query"], row["task"], row["uuid"], row["failure"], *row["agents"], *row["checks"])
    return any(text in field.casefold() for field in fields)


def _is_in_line(place: EpisodeLinePlace, text: str) -> bool:
    # The line is JSON, so the text is searched as JSON would write it.
    """True if an episode's JSON line contains a casefolded text. Images are not searched."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    try:
        return escaped in without_images(read_line(place).decode(errors="replace")).casefold()
    except OSError:
        return False


def _parse_range(query: Mapping[str, str], name: str) -> tuple[float, float] | None:
    """Return the numbers (low, high) of a range such as 0.2..0.8, 0.2.., or a single number, or None without the
    parameter.

    Raises FilterError for any other text.
    """
    text = query.get(name, "").strip()
    if not text:
        return None
    low, dots, high = text.partition("..")
    try:
        return (float(low or "-inf"), float(high or "inf")) if dots else (float(text), float(text))
    except ValueError as error:
        raise FilterError(f"{name}: a number or a range such as 0.2..0.8, not {text!r}") from error


def _parse_count(query: Mapping[str, str], name: str, default: int, limit: int) -> int:
    """Return a nonnegative integer parameter, at most `limit`, or the default without it. Raises FilterError."""
    text = query.get(name, "")
    if not text:
        return default
    return min(parse_integer(name, text), limit)


def parse_integer(name: str, given: str) -> int:
    """Parse a nonnegative integer in a request. Raises FilterError if it is none.

    Args:
        name: name of the parameter, for the error.
        given: its text.
    """
    if not (given.isdecimal() and given.isascii() and len(given) <= MOST_DIGITS):
        raise FilterError(f"{name}: a whole number of at most {MOST_DIGITS} digits, not {given[:40]!r}")
    return int(given)
