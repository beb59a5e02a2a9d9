"""What a person names in place of a run, and places that cannot be written to: a sentence that is true of what is
there, from every command alike."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.config.overrides import format_override
from ajet.engine.model_cache import open_entry
from ajet.schema.errors import UserError
from ajet_datagen.generation.kept import GenerationStore


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with notes and a file in them, and no run."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        launcher.main([*arguments])
    told = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2 and "Traceback" not in told, told
    return told


@pytest.mark.parametrize("verb", ["deploy", "export", "chat", "report", "audit"])
def test_a_file_or_a_folder_that_is_no_run_is_called_that(
    here: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    assert "notes/a.txt is a file, not a run" in said(capsys, verb, "notes/a.txt")
    told = said(capsys, verb, "notes")
    assert "notes is not a run: it contains no " in told and f"where {here}/notes " in told
    told = said(capsys, verb, "nobody")
    assert "There is no run named nobody" in told and f"where {here}/launcher_record/nobody " in told


def test_what_is_viewed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "a.txt is a file, not a run" in said(capsys, "view", "notes/a.txt")
    told = said(capsys, "view")
    assert (
        "There is no folder launcher_record: no run was started in this folder yet" in told and "starts a run" in told
    )
    assert "This folder contains no run" in said(capsys, "view", "notes", "--html", "x.html")
    told = said(capsys, "view", "no/where")
    assert "There is no run or folder named where" in told and "lists them" not in told, "nothing is in no/"
    assert not (here / "x.html").exists()


def test_a_cache_that_cannot_be_written_is_said(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a home folder that is read-only: a model that is to be kept, and what a model wrote."""
    monkeypatch.setenv("AJET_CACHE", str(here / "notes" / "a.txt" / "cache"))
    made: list[Path] = []
    with pytest.raises(UserError, match="model could not be written") as refused:
        open_entry("model", made.append)
    assert "AJET_CACHE" in refused.value.do and not made
    kept = GenerationStore(here / "notes" / "a.txt" / "generated", {})
    with pytest.raises(UserError, match="the generated tasks could not be written") as refused, kept.open():
        pass
    assert "AJET_CACHE" in refused.value.do and "--exp-dir" not in str(refused.value)


@pytest.mark.parametrize("text", ["/a/plain-1.0/path", "/ein Ordner – 模型/it's", "a,b={c}", "ends in \\"])
def test_a_setting_that_is_shown_can_be_pasted(text: str) -> None:
    from ajet.config.experiment import load_defaults

    shown = format_override("model.path", text)
    [word] = shlex.split(shown)
    assert load_defaults(overrides=[word]).ajet.model.path == text
    assert (shown == f"model.path={text}") == (os.path.basename(text) == "path")
