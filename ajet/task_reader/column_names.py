"""Columns of a row, found by name as people write names.

Invariant: names are compared without case, byte order mark and surrounding blanks. Two columns that a name means are
never chosen from: the row is refused with both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from ajet.task_reader.plain_values import BadRowError

_BYTE_ORDER_MARK = "\ufeff"


def trim_name(name: str) -> str:
    """Return the name without byte order mark and surrounding blanks; the unchanged name if nothing else remains."""
    return name.strip().strip(_BYTE_ORDER_MARK).strip() or name


@lru_cache(maxsize=4096)
def fold_name(name: str) -> str:
    """Return the name in the form that comparisons use: trimmed and without case."""
    return trim_name(name).casefold()


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the entry of `names` most similar to `name`, apart from case; None without a close match."""
    names_by_folded_name = {fold_name(candidate): candidate for candidate in names}
    similar = get_close_matches(fold_name(name), names_by_folded_name, 1)
    return names_by_folded_name[similar[0]] if similar else None


class RowColumns:
    """The columns of one row. Raises BadRowError if two names differ in blanks or a byte order mark only."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        """Index the columns of a row by name. Raises BadRowError if two names differ in surrounding blanks only."""
        self.row: dict[str, Any] = {}
        """The row with trimmed names."""
        self._columns_by_name: dict[str, list[str]] = {}
        for name, value in row.items():
            trimmed = trim_name(name)
            if trimmed in self.row:
                raise BadRowError(
                    f"two columns have the name {trimmed!r}, one of them with blanks or a byte order mark around it"
                )
            self.row[trimmed] = value
            self._columns_by_name.setdefault(fold_name(name), []).append(trimmed)

    def find(self, name: str) -> str | None:
        """Return the column that has this name, apart from case, and a value; None without one.

        Raises:
            BadRowError: several columns have the name.
        """
        matches = [column for column in self._columns_by_name.get(fold_name(name), ()) if self.row[column] is not None]
        if len(matches) > 1:
            raise BadRowError(
                f"the columns {' and '.join(map(repr, matches))} can both be {name}: rename one, or set the right "
                "one in ajet.task_reader.columns"
            )
        return matches[0] if matches else None

    def first(self, names: Iterable[str]) -> str | None:
        """Return the column of the first of these names that a column with a value has; None without one.

        Raises:
            BadRowError: several columns have the name.
        """
        return next((column for name in names if (column := self.find(name)) is not None), None)

    def get(self, name: str) -> Any:
        """Return the value in the column of this name, or None. Raises BadRowError if several columns have the name."""
        column = self.find(name)
        return None if column is None else self.row[column]

    def first_value(self, names: Iterable[str]) -> Any:
        """Return the first value in the columns of these names, or None. Raises BadRowError."""
        column = self.first(names)
        return None if column is None else self.row[column]

    def is_any_of(self, name: str, names: Collection[str]) -> bool:
        """Return True if a column's name, apart from case, is one of these names, which are in lower case."""
        return fold_name(name) in names

    def rename(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the row with each of `names` spelled exactly so, if its column differs in case or blanks.

        Raises:
            BadRowError: several columns have the name.
        """
        standard_name_by_column = {
            column: name for name in names if (column := self.find(name)) is not None and name not in self.row
        }
        return {standard_name_by_column.get(column, column): value for column, value in self.row.items()}

    def look_up(self, name: str) -> Any:
        """Return the value of the column that the settings name; dots select fields of objects, as in `a.b`.

        Raises:
            BadRowError: there is no such column, or several differ only in case or blanks.
        """
        value: Any = self.row
        # A column whose own name contains dots comes first.
        if (column := _find_key(self.row, name)) is not None:
            return self.row[column]
        for field in name.split("."):
            key = _find_key(value, field) if isinstance(value, Mapping) else None
            if key is None:
                similar = nearest_name(name, self.row)
                hint = f"; did you mean {similar}?" if similar else ""
                raise BadRowError(f"there is no column {name}; the columns are {', '.join(self.row) or 'none'}{hint}")
            value = value[key]
        return value


def _find_key(row: Mapping[str, Any], name: str) -> str | None:
    """Return the key equal to `name`, else the only key that differs in case or blanks, else None.

    Raises:
        BadRowError: several keys differ from the name in case or blanks.
    """
    if name in row:
        return name
    matches = [key for key in row if fold_name(key) == fold_name(name)]
    if len(matches) > 1:
        raise BadRowError(
            f"the columns {' and '.join(map(repr, matches))} differ from {name} only in case or blanks: write one "
            "exactly as in the file"
        )
    return matches[0] if matches else None
