"""`.env` files in the encodings that editors write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ajet.config.dotenv import load_dotenv_files
from ajet.schema.errors import UserError

TEXT = "# caf\xe9 \u2026\nAJET_TEST_DOTENV=caf\xe9\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.setenv("AJET_TEST_DOTENV", "")
    monkeypatch.delenv("AJET_TEST_DOTENV")
    (tmp_path / ".env").write_text(TEXT, encoding=encoding)
    load_dotenv_files([tmp_path])
    assert os.environ["AJET_TEST_DOTENV"] == "caf\xe9"


@pytest.mark.parametrize(
    ("encoding", "line", "named"),
    [("latin-1", 1, "cp1252"), ("cp1252", 1, "cp1252"), ("utf-16-le", 1, "utf-16-le"), ("utf-16-be", 1, "utf-16-be")],
)
def test_other_encodings_are_refused_by_name(tmp_path: Path, encoding: str, line: int, named: str) -> None:
    text = TEXT if encoding != "latin-1" else TEXT.replace("\u2026", "")
    (tmp_path / ".env").write_bytes(text.encode(encoding))
    with pytest.raises(UserError) as caught:
        load_dotenv_files([tmp_path])
    assert caught.value.where == f"{tmp_path.resolve() / '.env'}:{line}" and f"iconv -f {named} " in caught.value.do
