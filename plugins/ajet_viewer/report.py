"""`ajet report RUN`: bundles the information about a run for an issue, without secrets.

Invariant: every text passes the redactor again: values of environment and configuration by name, keys by shape; the
home directory becomes `~`. An unreadable part is noted in its place. The bundle is only written, never sent.
"""

from __future__ import annotations

import json
import platform
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from ajet.config.record_file import has_record_file, list_record_folder, open_record_file, read_record_file
from ajet.record.episodes import NAME
from ajet.record.files import MOST_BYTES, read_rows, read_tail, require_place
from ajet.record.find_run import newest_run, require_run
from ajet.record.logs import main_log
from ajet.record.secrets import Redactor, literal_secrets
from ajet.schema.errors import UserError

LOG_BYTES = 200_000
"""Number of bytes of the log's end in the bundle."""
ROWS = 20
"""Number of last rows of metrics.jsonl in the bundle."""
PACKAGES = ("ajet", "torch", "transformers", "vllm", "verl", "ray", "openai", "numpy", "peft", "datasets", "pydantic")


def write_report(run: str, root: Path, *, out: Path | None = None) -> Path:
    """Write the bundle of a run as a zip file, and return its path.

    Args:
        run: the run's name or folder.
        root: folder of all runs.
        out: path of the new file, or None for ajet-report-RUN.zip in the working directory.

    Raises:
        UserError: the run does not exist, or the file cannot be written.
    """
    folder = newest_run(run, root, holding="status.json")
    if folder is None:
        folder = require_run(run, root, holding="status.json", expected="a run's name or folder")
    folder = folder.absolute()
    target = out or Path(f"ajet-report-{folder.name}.zip")
    require_place(target, "--out")
    clean, are_secrets_known = _make_cleaner(folder)
    try:
        with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as bundle:
            for name, content in _list_parts(folder):
                if name == "given.yaml" and not are_secrets_known:
                    content = _explain_left_out
                bundle.writestr(f"{target.stem}/{name}", clean(_read_part(content)))
    except OSError as error:
        raise UserError(f"The report cannot be written: {error.strerror}.", where=str(target)) from error
    return target


def _list_parts(folder: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the name of each file in the bundle, with a function that returns its text."""
    yield "versions.json", _list_versions
    for name in ("environment.json", "status.json", "run.json", "evaluation.json", "command", "given.yaml"):
        if has_record_file(folder / name):
            yield name, partial(_read_text, folder / name)
    yield "origins.txt", lambda: _list_origins(folder)
    yield "log.txt", lambda: _read_log_end(main_log(folder))
    yield "metrics.jsonl", lambda: _encode_rows(list(read_rows(folder / "metrics.jsonl"))[-ROWS:])
    yield "episodes.jsonl", lambda: _encode_rows(_choose_episodes(folder / "episodes"))


def _read_part(content: Callable[[], str]) -> str:
    """Return the text of a part of the bundle, or a line that says why it could not be read."""
    try:
        return content()
    except (UserError, OSError, ValueError, KeyError, TypeError) as error:
        return f"This part could not be read: {type(error).__name__}: {error}\n"


def _explain_left_out() -> str:
    """Return the text that stands for the user's YAML in the bundle if its secrets are unknown."""
    return "Left out: the file cannot be parsed, so its secrets are unknown.\n"


def _make_cleaner(folder: Path) -> tuple[Callable[[str], str], bool]:
    """Return a function that removes secrets and the home directory from a text.

    Returns:
        The function, and True if the secrets in the user's YAML are known (the YAML could be parsed).
    """
    from ajet.config import read_recorded_tree

    literals: list[tuple[str, str]] = []
    are_secrets_known = True
    for name in ("given.yaml", "resolved.yaml"):
        try:
            literals += literal_secrets(read_recorded_tree(folder / name))
        except (UserError, OSError):
            are_secrets_known = are_secrets_known and name != "given.yaml"
    redact, home = Redactor(literals=literals), str(Path.home())

    def clean(text: str) -> str:
        """Replace secrets by marks and the home directory by `~`."""
        redacted = redact(text)
        return redacted.replace(home, "~") if len(home) > 1 else redacted

    return clean, are_secrets_known


def _list_versions() -> str:
    """Return the versions of Python, the system and the installed packages of PACKAGES as JSON."""
    versions: dict[str, Any] = {"python": platform.python_version(), "system": platform.platform()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return json.dumps(versions, indent=1) + "\n"


def _list_origins(folder: Path) -> str:
    """Return a text line for each key without its default: the key, its value and where it was set."""
    from ajet_viewer.config_page import build_config_page

    keys = [row for row in build_config_page(folder)["keys"] if row["origin"] != "default"]
    return "".join(f"{row['key']}: {json.dumps(row['value'], ensure_ascii=False)}  ({row['origin']})\n" for row in keys)


def _read_text(file: Path) -> str:
    """Return the text of a recorded file of limited size."""
    return read_record_file(file, MOST_BYTES).decode()


def _read_log_end(log: Path) -> str:
    """Return the last LOG_BYTES bytes of a log as text."""
    with open_record_file(log) as file:
        return read_tail(file, LOG_BYTES).decode(errors="replace")


def _encode_rows(rows: list[dict[str, Any]]) -> str:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _choose_episodes(folder: Path) -> list[dict[str, Any]]:
    """Choose two episodes of the newest file: a failed one or the one with the lowest reward, and the best one.

    Their JSON lines are returned, without token arrays.
    """
    episode_files = [folder / name for name in list_record_folder(folder) if NAME.fullmatch(name)]
    files = sorted(episode_files, key=lambda path: path.lstat().st_mtime)
    if not files:
        return []

    def make_sort_key(row: dict[str, Any]) -> tuple[bool, float]:
        """Return the sort key of an episode: failed ones first, then unscored ones, then by reward."""
        reward = (row.get("verdict") or {}).get("reward")
        return row.get("failure") is None, float("-inf") if reward is None else reward

    rows = sorted(read_rows(files[-1]), key=make_sort_key)
    return [rows[0], rows[-1]] if len(rows) > 1 else rows


def list_contents(bundle: Path) -> list[tuple[str, int]]:
    """Return (name, size in bytes) for each file in a bundle."""
    with zipfile.ZipFile(bundle) as archive:
        return [(part.filename, part.file_size) for part in archive.infolist()]
