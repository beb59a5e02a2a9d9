"""Tasks as AgentJetJob is told them: a reader, a path, two splits; and the keys of `task_reader` that say the same.

Invariant: a path or a split that is given is in the keys, or refused: none is left out in silence. `train` and `test`
are what AgentJet's job says where nobody said anything, and are no splits where a reader has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from ajet.config.plugins import find_all_parts, find_part
from ajet.schema.errors import UserError

SHORT = {
    "hf": "huggingface_dat_repo",
    "huggingface": "huggingface_dat_repo",
    "jsonl": "jsonl_dataset_file",
    "dataset_file": "jsonl_dataset_file",
    "dummy": "random_dummy",
}
UNSAID = ("train", "test")
_FILES = (".jsonl", ".json", ".parquet", ".csv")


class Place(NamedTuple):
    """The place in a reader's section of files and splits."""

    path: str
    splits: tuple[str, str] | None = None
    """The keys of the names of both splits."""
    held_out: str | None = None
    """The key of the held-out file, where each split is a file."""
    folders: bool = False
    """Whether such a file may be FOLDER/SPLIT."""


_HUB, _FILE = ("training_split", "validation_split"), ("training.file_path", None, "validation.file_path")
_COPY = Place(*_FILE, folders=True)
PLACES: Mapping[str, Place] = {
    "huggingface_dat_repo": Place("dataset_path", _HUB),
    "jsonl_dataset_file": Place(*_FILE),
    "agentrl": Place(*_FILE),
    "gsm8k": _COPY,
    "math": _COPY,
    "gaia": _COPY,
    "hotpotqa": _COPY,
    "env_service": Place("env_url", _HUB),
}
"""Readers with a path and splits. The path of any other is its required key, if it has one."""


def reader_keys(kind: str, path: str, training: str | None, validation: str | None) -> dict[str, Any]:
    """The keys below `task_reader` and their values. Raises UserError for what this reader has no place for."""
    kind = SHORT.get(kind, kind)
    place = _find_place(kind)
    if place is None:
        if path:
            raise _homeless("path", path, kind)
        place = Place("")
    told: dict[str, Any] = {place.path: path} if path else {}
    if place.splits is not None:
        told |= {key: split for key, split in zip(place.splits, (training, validation), strict=True) if split}
    elif place.held_out is not None:
        told[place.path] = _file(path, training, kind, "train", place) or path or None
        told[place.held_out] = _file(path, validation, kind, "test", place)
    else:
        for split, unsaid in zip((training, validation), UNSAID, strict=True):
            if split not in (None, unsaid):
                raise _homeless("split", split, kind)
    return {"type": kind, **{f"{kind}.{key}": value for key, value in told.items()}}


def _find_place(kind: str) -> Place | None:
    if kind in PLACES:
        return PLACES[kind]
    part = find_part("reader", kind)
    return Place(part.first_key[0]) if part is not None and part.first_key is not None else None


def _file(path: str, split: str | None, kind: str, unsaid: str, place: Place) -> str | None:
    """The file of a split: itself where it is one, or that of this name in the folder `path`."""
    if split is None or split.endswith(_FILES) or "/" in split:
        return split
    if place.folders and path and not path.endswith(_FILES):
        return str(PurePath(path) / split)
    if split != unsaid:
        raise _homeless("split", split, kind)
    return None


def _homeless(what: str, value: str, kind: str) -> UserError:
    names = ", ".join(name for name in find_all_parts("reader") if _find_place(name))
    return UserError(
        f"The reader {kind} has no place for the {what} {value!r}.",
        where="set_data",
        expected=f"a file for each split, of those that have {what}s: {names}"
        if what == "split"
        else f"a reader that has one: {names}",
        do="leave it out, and set the reader's own keys with `set(task_reader__…)`",
    )
