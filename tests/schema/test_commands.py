"""Commands that are printed can be pasted: in a clone, with a wheel, with an environment that is not activated."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from ajet.record import find_run
from ajet.schema import commands
from ajet.schema.errors import UserError
from ajet_testing.packages import find_packages, list_sources
from ajet_viewer import view

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder, which is the working directory, with `.venv` in it; nothing of it is on the PATH."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "ajet"):
        (tmp_path / ".venv" / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: [object()])
    return tmp_path


def test_a_program_that_is_not_on_the_path_is_called_by_its_place(environment, monkeypatch):
    assert commands.format_command("chat", "a b") == ".venv/bin/ajet chat 'a b'"
    monkeypatch.chdir("/usr")
    assert commands.find_program() == f"{environment}/.venv/bin/ajet"
    monkeypatch.setenv("PATH", f"{environment}/.venv/bin:/usr/bin")
    assert commands.find_program() == "ajet"


def test_another_ajet_on_the_path_is_not_this_one(environment, monkeypatch, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "ajet").write_text("#!/bin/sh\n")
    (other / "ajet").chmod(0o755)
    monkeypatch.setenv("PATH", str(other))
    assert commands.find_program() == ".venv/bin/ajet"


def test_without_a_script_it_is_a_module(environment):
    (environment / ".venv" / "bin" / "ajet").unlink()
    assert commands.find_program() == ".venv/bin/python -m ajet"


def test_a_clone_installs_from_itself_and_a_wheel_from_where_it_came(environment, monkeypatch):
    (environment / "pyproject.toml").touch()
    monkeypatch.setattr(commands, "HOME", environment)
    assert commands.format_extra_install("local") == '.venv/bin/python -m pip install -e ".[local]"'
    monkeypatch.setattr(commands, "HOME", environment / "site-packages")
    monkeypatch.setattr(commands, "find_origin", lambda: "file:///tmp/ajet-0.1.0-py3-none-any.whl")
    wanted = 'install "ajet[local] @ file:///tmp/ajet-0.1.0-py3-none-any.whl"'
    assert commands.format_extra_install("local").endswith(wanted)
    monkeypatch.setattr(commands, "find_origin", lambda: None)
    assert commands.format_extra_install("local") == '.venv/bin/python -m pip install "ajet[local]"'


def test_an_environment_without_pip_is_filled_by_uv(environment, monkeypatch):
    monkeypatch.setattr("importlib.metadata.distributions", lambda name: [])
    (environment / ".venv" / "bin" / "uv").write_text("#!/bin/sh\n")
    (environment / ".venv" / "bin" / "uv").chmod(0o755)
    assert commands.format_install("a==1", "b") == '.venv/bin/uv pip install --python .venv/bin/python "a==1" b'


def test_an_install_command_leaves_setuptools_importable():
    program = "from ajet.schema.commands import format_install; format_install('a'); import setuptools"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_run_is_named_by_its_name_only_where_commands_look(environment):
    inside, elsewhere = environment / "launcher_record" / "tool", environment / "kept" / "tool"
    for folder in (inside, elsewhere):
        folder.mkdir(parents=True)
    assert (
        commands.format_run_name(inside, "tool") == "tool"
        and commands.format_run_name(elsewhere, "tool") == "kept/tool"
    )


def test_a_name_is_a_run_before_it_is_a_folder_and_the_newest_debug_one_too(environment):
    """A project and its run are often called the same."""
    (environment / "tool").mkdir()
    root = environment / "launcher_record"
    assert find_run.newest_run("tool", root, holding="status.json") is None
    for at, place in enumerate(("tool/eval/3", "tool", "tool/debug/1", "tool/debug/2")):
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place / "status.json").touch()
        os.utime(root / place / "status.json", (1000 + at, 1000 + at))
        assert find_run.newest_run("tool", root, holding="status.json") == root / place
    os.utime(root / "tool" / "eval" / "3" / "status.json", (5000, 5000))
    assert view.choose_place("tool", root) == root / "tool/debug/2", (
        "an evaluation is not what is looked at by the run's name"
    )
    assert (
        view.choose_place("./tool", root) == Path("./tool")
        and view.choose_place("tool/debug/1", root) == root / "tool/debug/1"
    )
    (environment / "tool" / "run.json").touch()
    (root / "tool" / "run.json").touch()
    assert find_run.run_folder("tool", root, holding="run.json") == root / "tool"
    assert find_run.run_folder("./tool", root, holding="run.json") == Path("./tool")


def test_a_debug_run_that_is_looked_at_in_place_of_the_run_is_said(environment, capsys):
    root = environment / "launcher_record"
    for at, place in enumerate(("tool", "tool/debug/1")):
        (root / place).mkdir(parents=True)
        (root / place / "status.json").touch()
        os.utime(root / place / "status.json", (1000 - at, 1000 - at))
    assert find_run.newest_run("tool", root, holding="status.json") == root / "tool"
    assert capsys.readouterr() == ("", "")
    os.utime(root / "tool" / "debug" / "1" / "status.json", (2000, 2000))
    assert find_run.newest_run("tool", root, holding="status.json") == root / "tool" / "debug" / "1"
    told = capsys.readouterr()
    assert told.out == "" and "tool: using the debug run 1" in told.err and str(root / "tool") in told.err


def test_what_init_prints_runs_as_pasted(tmp_path):
    """In a real environment that is not activated."""
    venv.create(tmp_path / ".venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / ".venv").glob("lib/python*/site-packages")
    (site / "here.pth").write_text("\n".join([str(ROOT), *(path for path in sys.path if "site-packages" in path)]))
    script = tmp_path / ".venv" / "bin" / "ajet"
    script.write_text(f"#!{tmp_path}/.venv/bin/python\nfrom ajet.cli.launcher import main\nmain()\n")
    script.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    shell = {"cwd": tmp_path, "env": {**clean, "PATH": "/usr/bin:/bin"}, "capture_output": True, "text": True}
    made = subprocess.run([".venv/bin/ajet", "init", "my agent", "--template", "tool"], **shell)
    (line,) = (line for line in made.stdout.splitlines() if line.startswith("Try the agent:"))
    pasted = line.removeprefix("Try the agent:").strip()
    assert shlex.split(pasted)[0] == ".venv/bin/ajet"
    done = subprocess.run(["sh", "-c", f"{pasted} --help"], **shell)
    assert done.returncode == 0 and "--backbone" in done.stdout, done.stderr


@pytest.mark.slow
def test_no_command_is_printed_that_was_not_made_here():
    """Advice with a bare `ajet …` or `pip install` fails where it is pasted."""
    import ast
    import re

    bare = re.compile(r"pip install |(?:^|[`: ])ajet (?:--conf|[a-z]+ (?:[A-Z{]|-)|(?:runs|doctor|config)\b)")
    found = []

    def said(node: ast.AST) -> list[str]:
        return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]

    for file in (file for package in find_packages(ROOT).values() for file in list_sources(package)):
        if "templates" in file.parts or file.name in ("commands.py", "docs.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword) and node.arg in ("do", "expected"):
                found += [f"{file.name}:{node.value.lineno}: {text}" for text in said(node) if bare.search(text)]
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("print", "echo"):
                found += [f"{file.name}:{node.lineno}: {text}" for text in said(node) if bare.search(text)]
    assert not found, "\n".join(found)


def test_runs_are_listed_where_they_are(environment):
    assert commands.format_list_command(environment / "launcher_record") == ".venv/bin/ajet runs"
    assert commands.format_list_command(Path("my runs")) == ".venv/bin/ajet runs --exp-dir 'my runs'"
    with pytest.raises(UserError) as caught:
        find_run.require_run("nobody", environment / "other", holding="metrics.jsonl", expected="a run")
    assert caught.value.do == ".venv/bin/ajet runs --exp-dir other lists them"
