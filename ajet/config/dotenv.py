"""Load .env files: first from the working directory, then from the folder of the YAML.

Invariant: existing variables have precedence, so the shell wins over both files, and the first file over the second.
Only a YAML named by --conf counts. The folder of a record may come from another person and is never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from pathlib import Path

from ajet.schema.text_files import read_text


def load_dotenv_files(folders: Iterable[Path]) -> list[Path]:
    """Load the `.env` file of each folder, and return the loaded files.

    Raises:
        UserError: A file has an unknown encoding.
    """
    import dotenv

    files = [folder.resolve() / ".env" for folder in folders]
    existing = [file for file in dict.fromkeys(files) if file.is_file()]
    for file in existing:
        dotenv.load_dotenv(stream=StringIO(read_text(file)), override=False)
    return existing


def load_project_dotenv(*, record: Path) -> None:
    """Load the `.env` of the working directory, for a command on the model of a recorded run.

    Nothing is loaded if the working directory lies in the record, which may come from another person.
    """
    working_directory = Path.cwd().resolve()
    if not working_directory.is_relative_to(record.resolve()):
        load_dotenv_files([working_directory])
