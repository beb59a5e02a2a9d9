"""Size limits of texts and metadata of user code: exceptions, prints and results may have any size.

Invariant: no text of an attempt makes its record longer than these bounds together; a text that was cut says how much
of it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ajet.record.plain_json import dumps
from ajet.schema.episode import Failure

MESSAGE = 16_000
"""Characters kept of an error message or of a judge's reason, the first ones."""
TRACEBACK = 20_000
"""Characters kept of a traceback, the last ones."""
PRINTED = 8_000
"""Characters kept of an attempt's standard output and error, the last ones."""
VALUE = 1 << 16
"""Characters of JSON kept of one value of the metadata."""
METADATA = 1 << 20
"""Characters of JSON kept of an episode's metadata in all."""


def beginning(text: str, most: int = MESSAGE) -> str:
    """Return the first `most` characters."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters were cut)"


def ending(text: str, most: int, *, before: int = 0, unit: str = "characters") -> str:
    """Return the last `most` characters; `before` is the amount lost before `text`, in `unit`."""
    cut = max(0, len(text) - most) + before
    return f"({cut} {unit} before this were cut) …\n{text[-most:]}" if cut else text


def failure(given: Failure) -> Failure:
    """Return the failure with bounded texts."""
    if len(given.message) <= MESSAGE and len(given.traceback) <= TRACEBACK:
        return given
    return replace(given, message=beginning(given.message), traceback=ending(given.traceback, TRACEBACK))


def metadata(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a workflow with bounded values.

    A value that is too long becomes the beginning of its JSON, or of its text; the key `cut` then names it.
    """
    kept: dict[str, Any] = {}
    cut: list[str] = []
    room = METADATA
    for key, value in given.items():
        text = value if isinstance(value, str) else dumps(value)
        most = max(0, min(VALUE, room - len(str(key))))
        if len(text) <= most:
            kept[key] = value
        elif len(cut) < 100:
            cut.append(f"{beginning(str(key), 100)}: {len(text)} characters")
            if most and len(str(key)) < VALUE:
                kept[key] = beginning(text, most)
        room -= min(len(text), most) + len(str(key))
    if cut:
        kept["cut"] = f"of {len(given)} values these were longer than what is recorded: {'; '.join(cut)}"
    return kept


def words_of(problem: BaseException) -> str:
    """Return the message of an exception, also if its own `__str__` raises."""
    try:
        return str(problem)
    except Exception as error:  # noqa: BLE001 - user code, too
        return f"(its text could not be made: {type(error).__name__})"
