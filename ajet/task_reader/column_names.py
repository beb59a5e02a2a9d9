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
    """Return the name without byte order mark and surrounding blanks, unless empty then."""
    return name.strip().strip(_BYTE_ORDER_MARK).strip() or name


@lru_cache(maxsize=4096)
def fold_name(name: str) -> str:
    """Return the folded name for comparisons."""
    return trim_name(name).casefold()


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of `names`; None without a close match."""
    folded = {fold_name(each): each for each in names}
    similar = get_close_matches(fold_name(name), folded, 1)
    return folded[similar[0]] if similar else None


class RowColumns:
    """The columns of one row. Raises BadRowError if two names differ in blanks or a byte order mark only."""

    def __init__(self, row: Mapping[str, Any]) -> None:
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
        """Return the column of a standard name with a value; None without one. Raises BadRowError."""
        matches = [each for each in self._columns_by_name.get(fold_name(name), ()) if self.row[each] is not None]
        if len(matches) > 1:
            raise BadRowError(
                f"the columns {' and '.join(map(repr, matches))} can both be {name}: rename one, or set the right "
                "one in ajet.task_reader.columns"
            )
        return matches[0] if matches else None

    def first(self, names: Iterable[str]) -> str | None:
        """Return the column of the first of these names with a value. Raises BadRowError."""
        return next((column for name in names if (column := self.find(name)) is not None), None)

    def get(self, name: str) -> Any:
        """Return the value of a standard name's column, or None. Raises BadRowError."""
        column = self.find(name)
        return None if column is None else self.row[column]

    def first_value(self, names: Iterable[str]) -> Any:
        """Return the first value in the columns of these names, or None. Raises BadRowError."""
        column = self.first(names)
        return None if column is None else self.row[column]

    def is_any_of(self, name: str, names: Collection[str]) -> bool:
        """True if a column name matches one of these names."""
        return fold_name(name) in names

    def rename(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the row with matching columns renamed to `names`. Raises BadRowError."""
        usual = {column: name for name in names if (column := self.find(name)) is not None and name not in self.row}
        return {usual.get(column, column): value for column, value in self.row.items()}

    def look_up(self, name: str) -> Any:
        """Return the value of a user-named column; dots select fields of objects. Raises BadRowError if missing."""
        value: Any = self.row
        if (exact := _find_key(self.row, name)) is not None:
            return self.row[exact]
        for part in name.split("."):
            key = _find_key(value, part) if isinstance(value, Mapping) else None
            if key is None:
                similar = nearest_name(name, self.row)
                hint = f"; did you mean {similar}?" if similar else ""
                raise BadRowError(f"there is no column {name}; the columns are {', '.join(self.row) or 'none'}{hint}")
            value = value[key]
        return value


def _find_key(row: Mapping[str, Any], name: str) -> str | None:
    """Return the key of `row` that `name` names: the very same first. Raises BadRowError if two others do."""
    if name in row:
        return name
    matches = [each for each in row if fold_name(each) == fold_name(name)]
    if len(matches) > 1:
        raise BadRowError(
            f"the columns {' and '.join(map(repr, matches))} differ from {name} only in case or blanks: write one "
            "exactly as in the file"
        )
    return matches[0] if matches else None
