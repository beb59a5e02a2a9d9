""".env files: variables of the working directory's, then of the one beside the YAML.

Invariant: a variable that exists already wins, so the shell wins over both files and the first file over the second.
The YAML is one that was named with --conf: the folder of a record, which somebody else may have sent, gives nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from pathlib import Path

from ajet.schema.text_files import read_text


def load_dotenv_files(folders: Iterable[Path]) -> list[Path]:
    """Load the `.env` of each folder that has one and return those files.

    Raises UserError for a file in an encoding that nothing names.
    """
    import dotenv

    files = [folder.resolve() / ".env" for folder in folders]
    found = [file for file in dict.fromkeys(files) if file.is_file()]
    for file in found:
        dotenv.load_dotenv(stream=StringIO(read_text(file)), override=False)
    return found


def load_project_dotenv(*, record: Path) -> None:
    """Load the `.env` of the working directory for a command that works with the model of a record, unless that
    directory is the record's own or lies in it."""
    here = Path.cwd().resolve()
    if not here.is_relative_to(record.resolve()):
        load_dotenv_files([here])
