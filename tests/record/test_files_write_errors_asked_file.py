"""What a person asks a command to write, where that cannot be: one screen that names the option, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet.cli.launcher import main
from ajet.record.files import convert_os_errors, require_place
from ajet.schema.errors import UserError
from tests.record.test_run_directory import trained

YAML = "ajet: {model: {path: embedded:tiny-tools}}\n"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a YAML, a file and a folder."""
    folder = tmp_path_factory.mktemp("p")
    trained(folder / "launcher_record", 1)
    (folder / "x.yaml").write_text(YAML)
    for name in ("taken.sh", "ajet-rejudge-demo.csv"):
        (folder / name).write_text("edited by hand\n")
    (folder / "folder").mkdir()
    return folder


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """The one screen of a command that ends with a mistake of the person's."""
    with pytest.raises(SystemExit) as ended:
        main(list(command))
    told = capsys.readouterr()
    assert ended.value.code == 2 and "Traceback" not in told.err and len(told.err.splitlines()) < 12, told
    return told.err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("cluster render slurm --conf x.yaml --out taken.sh", "taken.sh exists already"),
        ("cluster render slurm --conf x.yaml --out taken.sh/run.sh", "cannot be written: "),
        ("cluster render slurm --conf x.yaml --out folder", "folder exists already"),
        ("audit demo --export missing/a.jsonl", "The folder missing does not exist"),
        ("audit demo --export taken.sh/a.jsonl", "taken.sh is a file, not a folder"),
        ("eval x.yaml --csv missing/a.csv", "The folder missing does not exist"),
        ("eval x.yaml --picture folder", "folder is a folder"),
        ("eval x.yaml --mark taken.sh/a.jsonl", "taken.sh is a file, not a folder"),
        ("rejudge demo --judge math --out missing/a.csv", "The folder missing does not exist"),
        ("rejudge demo --judge math --out folder", "folder has an unsupported suffix"),
        ("rejudge demo --judge math", "ajet-rejudge-demo.csv exists already"),
        ("report demo --out missing/a.zip", "The folder missing does not exist"),
        ("export demo --out taken.sh/model", "cannot be written: "),
        ("traces --from folder --out taken.sh/tasks", "cannot be written: "),
    ],
)
def test_it_is_said_on_one_screen_and_nothing_is_written_over(project, monkeypatch, capsys, command, says):
    monkeypatch.chdir(project)
    told = refused(capsys, *command.split())
    options = [word for word in command.split() if word[:2] == "--" and word != "--judge"]
    assert says in told and (options or ["--out"])[-1] in told
    assert (project / "taken.sh").read_text() == "edited by hand\n" and not any((project / "folder").iterdir())


def test_what_the_system_refuses_meanwhile_is_said_likewise(tmp_path):
    with (
        pytest.raises(UserError, match="a.csv cannot be written: No space left") as error,
        convert_os_errors(tmp_path / "a.csv", "--csv"),
    ):
        raise OSError(28, "No space left on device")
    assert error.value.where == "--csv"
    (tmp_path / "a.csv").touch()
    require_place(tmp_path / "a.csv", "--csv", new=False)
    with pytest.raises(UserError, match="cannot be written: File name too long"):
        require_place(tmp_path / ("x" * 300), "--out")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "file")
    with pytest.raises(UserError, match="exists already"):
        require_place(tmp_path / "dangling", "--out")
