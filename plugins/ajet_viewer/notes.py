"""A person's own words about a run: a note and tags, in the run's folder.

Invariant: nothing of the run reads them, so that a word about a run changes nothing of it; they are replaced whole, and
only by who had read what is there; what cannot be read is no note, never an error of the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet.record.bounded_json import read_json
from ajet.record.files import write_atomically
from ajet.record.lock import alone
from ajet.schema.errors import AjetError, UserError

FILE = "notes.json"
LOCK = ".notes.lock"
MOST_BYTES = 64 << 10
"""Of the file, and of a request that replaces it."""
PATIENCE_S = 10.0
LONGEST_NOTE = 10_000
LONGEST_TAG, MOST_TAGS = 40, 20
NONE: dict[str, Any] = {"note": "", "tags": [], "edit": 0}


class NoteError(AjetError, ValueError):
    """Words that cannot be kept."""


class NoteConflictError(AjetError):
    """Somebody else has changed the note meanwhile."""


def read_notes(folder: Path) -> dict[str, Any]:
    """{note, tags, edit}: `edit` counts how often they were replaced; 0: never."""
    try:
        return _check_note(read_json(folder / FILE, MOST_BYTES))
    except (OSError, ValueError):
        return dict(NONE)


def save_notes(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace them by `given`, whose `edit` is that of what was read; answers what is kept. Raises NoteError,
    NoteConflictError, UserError where the folder cannot be written, or another viewer holds it for longer than
    PATIENCE_S."""
    wanted = _check_note(given)
    try:
        with alone(folder / LOCK, "changes the note", at_most=PATIENCE_S):
            before = read_notes(folder)
            if wanted["edit"] != before["edit"]:
                raise NoteConflictError("The note was changed meanwhile: look at what it says now.")
            saved = wanted | {"edit": before["edit"] + 1}
            write_atomically(folder / FILE, json.dumps(saved, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"The note cannot be kept: {error.strerror}.", where=str(folder / FILE)) from error
    return saved


def _check_note(given: Mapping[str, Any]) -> dict[str, Any]:
    note, tags, edit = given.get("note", ""), given.get("tags", []), given.get("edit", 0)
    if not isinstance(note, str) or len(note) > LONGEST_NOTE:
        raise NoteError(f"note: a text of at most {LONGEST_NOTE:,} characters")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise NoteError("tags: a list of words")
    words = list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if len(words) > MOST_TAGS or any(len(tag) > LONGEST_TAG or "," in tag for tag in words):
        raise NoteError(f"tags: at most {MOST_TAGS}, each of at most {LONGEST_TAG} characters and without a comma")
    if not isinstance(edit, int) or isinstance(edit, bool):
        raise NoteError("edit: the number of what was read")
    return {"note": note.encode(errors="replace").decode(), "tags": words, "edit": edit}
