"""Finds the run named on the command line, by name or by folder.

Invariant: a word without a separator is a run's name if such a run exists, even if a folder has the same name (a
project and its run often share one); a text with a separator is a path. Readers of episodes get the newest folder among
a run and its debug runs, with a notice if a debug run is newer than the trained run.
"""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path

from ajet.config.record_file import has_record_file, list_record_folder
from ajet.record.console import SafeConsole
from ajet.schema.commands import format_command, format_list_command
from ajet.schema.errors import UserError


def newest_run(named: str, root: Path, *, holding: str) -> Path | None:
    """Return the newest folder that contains `holding`, among the run `named` and its debug runs.

    If there is none, the run's evaluations and prompt optimizations are searched. A notice is printed if a debug run is
    newer than the run itself.

    Args:
        named: Name of the run.
        root: Folder of all runs.
        holding: Name of the file or folder that must exist.

    Returns:
        None without such a folder, or if `named` is a path.
    """
    if _is_path(named):
        return None
    for kinds in (("", "debug"), ("eval", "prompt")):
        folders = [
            folder for kind in kinds for folder in ([root / named] if not kind else _list_folders(root / named / kind))
        ]
        holders = [folder for folder in folders if (folder / holding).exists()]
        if holders:
            newest = max(holders, key=_last_update)
            if newest != root / named and root / named in holders:
                _say_which(newest, root / named)
            return newest
    return None


def run_folder(named: str, root: Path, *, holding: str) -> Path:
    """Return the folder of the run `named`, or the folder of this path.

    Args:
        root: Folder of all runs.
        holding: Name of a file or folder. A folder that has it is preferred.
    """
    if not _is_path(named) and (root / named / holding).exists():
        return root / named
    if Path(named, holding).exists():
        return Path(named)
    return Path(named) if Path(named).exists() and not (root / named).exists() else root / named


def require_run(named: str, root: Path, *, holding: str, expected: str) -> Path:
    """Return the folder of the run `named`. Raises UserError if it lacks `holding`.

    Args:
        root: Folder of all runs.
        holding: Name of the file or folder that must exist.
        expected: What the error says was expected.
    """
    folder = run_folder(named, root, holding=holding)
    if (folder / holding).exists():
        return folder
    kinds = [kind for kind in ("debug", "eval") if (folder / kind).is_dir()]
    missing = f"There is no run named {named}."
    if folder.exists():
        missing = f"{named} is {'not a run: it contains no ' + holding if folder.is_dir() else 'a file, not a run'}."
    if (parent_run := _run_above(folder)) is not None:
        raise UserError(
            f"{named} is a checkpoint or an export, not a run.",
            where=str(folder.absolute()),
            expected=expected,
            do=f"pass its run: {parent_run}",
        )
    raise UserError(
        f"The run {named} exists only as a recording of {' and '.join(kinds)}; it was not trained."
        if kinds
        else missing,
        where=str(folder.absolute()),
        expected=expected,
        do=f"train it first: {_train_command(named)}" if kinds else suggest_run(named, root, trains=True),
    )


def _run_above(folder: Path) -> Path | None:
    """Return the run above a folder `RUN/checkpoints/step-N` or `RUN/exports/step-N`, or None for any other folder."""
    is_model = folder.parent.name in ("checkpoints", "exports") and folder.name.startswith("step-")
    run = folder.parent.parent
    return run if is_model and (run / "run.json").is_file() else None


def _train_command(named: str) -> str:
    """Return the command that trains the run of this name, whose YAML has the same name by default."""
    yaml = f"{named}.yaml"
    return format_command("--conf", yaml if Path(yaml).is_file() else "FILE.yaml", "--backbone", "local")


def suggest_run(named: str, root: Path, *, trains: bool = False) -> str:
    """Return advice for an unknown run name: the most similar name, and the command that lists the runs.

    Args:
        root: Folder of all runs.
        trains: True if a trained run is wanted; then a YAML of that name is suggested for training.
    """
    run_names = [folder.name for folder in _list_folders(root) if folder.is_dir() and folder.name != named]
    similar = get_close_matches(named, run_names, 1)
    if trains and not similar and Path(f"{named}.yaml").is_file():
        return f"train it first: {_train_command(named)} ({format_list_command(root)} lists the existing runs)"
    return (f"did you mean {similar[0]}? " if similar else "") + f"{format_list_command(root)} lists them"


def _say_which(debug: Path, run: Path) -> None:
    """Print on standard error that a debug run is used instead of the run, because standard output may be for JSON."""
    notice = f"using the debug run {debug.name}, which is newer than the training run {run}"
    SafeConsole(stderr=True, highlight=False, soft_wrap=True).print(f"{run.name}: {notice}", markup=False)


def _is_path(named: str) -> bool:
    """Return True if the text on the command line is a path, not a run's name."""
    return os.sep in named or named in (".", "..") or named.startswith("~")


def _list_folders(folder: Path) -> list[Path]:
    return [folder / name for name in list_record_folder(folder)]


def _last_update(folder: Path) -> float:
    """Return when the run in `folder` last changed its status, in seconds since the epoch."""
    status = folder / "status.json"
    return (status if has_record_file(status) else folder).stat().st_mtime
