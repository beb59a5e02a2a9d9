""".env files: variables of the working directory's, then of the one beside the YAML.

Invariant: a variable that exists already wins, so the shell wins over both files and the first file over the second.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def load_dotenv_files(folders: Iterable[Path]) -> list[Path]:
    """Load the `.env` of each folder that has one; the files that were read."""
    import dotenv

    files = [folder.resolve() / ".env" for folder in folders]
    found = [file for file in dict.fromkeys(files) if file.is_file()]
    for file in found:
        dotenv.load_dotenv(file, override=False)
    return found
