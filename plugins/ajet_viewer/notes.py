"""Reads and writes the user's notes and tags about a run, stored in its folder.

Invariant: the run never reads them. They are replaced as a unit, and only by an editor who saw the latest version.
Unreadable notes count as absent and never fail the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet.record.files import read_json, write_atomically
from ajet.record.lock import alone
from ajet.schema.errors import AjetError, UserError

FILE = "notes.json"
LOCK = ".notes.lock"
MOST_BYTES = 64 << 10
"""Maximum size of the file and of a request, in bytes."""
PATIENCE_S = 10.0
LONGEST_NOTE = 10_000
LONGEST_TAG, MOST_TAGS = 40, 20
NONE: dict[str, Any] = {"note": "", "tags": [], "edit": 0}


class NoteError(AjetError, ValueError):
    """The notes in a request have a wrong form or size."""


class NoteConflictError(AjetError):
    """The notes were changed by another editor."""


def read_notes(folder: Path) -> dict[str, Any]:
    """Return the notes of a run as {note, tags, edit}, where `edit` counts how often they were replaced."""
    try:
        return _check_note(read_json(folder / FILE, MOST_BYTES))
    except (OSError, ValueError):
        return dict(NONE)


def save_notes(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the notes of a run and return the new ones.

    Args:
        folder: the run's folder.
        given: {note, tags, edit}, with the `edit` of the version that was edited.

    Raises:
        NoteError: the notes have a wrong form or size.
        NoteConflictError: the notes were replaced since that version.
        UserError: the folder cannot be written, or another viewer holds the lock for PATIENCE_S seconds.
    """
    note = _check_note(given)
    try:
        with alone(folder / LOCK, "changes the note", at_most=PATIENCE_S):
            earlier_notes = read_notes(folder)
            if note["edit"] != earlier_notes["edit"]:
                raise NoteConflictError("The note was changed meanwhile: reload it.")
            saved = note | {"edit": earlier_notes["edit"] + 1}
            write_atomically(folder / FILE, json.dumps(saved, ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"The note cannot be saved: {error.strerror}.", where=str(folder / FILE)) from error
    return saved


def _check_note(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return notes with trimmed tags, each once, or raise NoteError if their form or size is wrong."""
    note, tags, edit = given.get("note", ""), given.get("tags", []), given.get("edit", 0)
    if not isinstance(note, str) or len(note) > LONGEST_NOTE:
        raise NoteError(f"The note must be a text of at most {LONGEST_NOTE:,} characters.")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise NoteError("The tags must be a list of texts.")
    clean_tags = list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if len(clean_tags) > MOST_TAGS or any(len(tag) > LONGEST_TAG or "," in tag for tag in clean_tags):
        raise NoteError(
            f"A note has at most {MOST_TAGS} tags, each of at most {LONGEST_TAG} characters and without a comma."
        )
    if not isinstance(edit, int) or isinstance(edit, bool):
        raise NoteError("The field `edit` must be the version number of the note before this change.")
    # Half of a surrogate pair, which JSON may contain, cannot be written as UTF-8.
    return {"note": note.encode(errors="replace").decode(), "tags": clean_tags, "edit": edit}
