"""The wheel: what is in it, and that it works unpacked, from any folder, without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ajet_testing.packages import PLUGINS, find_plugins
from scripts.fresh_installs import build_wheel
from tests.support.viewer_fixtures import write_run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TUTORIAL_YAML = """
ajet:
  project_name: math_agent
  model: {path: embedded:tiny-tools}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: "tutorial.example_math_agent.workflow->MathAgentWorkflow"}
hydra:
  searchpath:
    - file://ajet/default_config
    - file://ajet/default_config/verl
    - file://ajet/default_config/trinity
defaults:
  - verl_default
  - trinity_default
  - ajet_default
  - _self_
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel's path."""
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `pip install` would fill site-packages."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def python(unpacked: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """This interpreter with the unpacked wheel before everything else, in a folder outside of the repository."""
    env = {**os.environ, "PYTHONPATH": str(unpacked), "NO_COLOR": "1", "COLUMNS": "120", "TERM": "dumb"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def test_the_wheel_holds_code_defaults_and_tutorials_and_no_rubbish(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {"ajet": "ajet", **{name: f"ajet/{name}" for name in ("default_config", "tutorial", "deploy")}}
    shipped |= {name: f"ajet_aworld/names/{name}" for name in ("train", "env")}
    shipped |= {f"{PLUGINS}/{name}": name for name in find_plugins(ROOT)}
    for source, inside in shipped.items():
        tracked = subprocess.run(["git", "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=True)
        lines = [line for line in tracked.stdout.splitlines() if not line.startswith(f"{source}/tests/")]
        files = {inside + line.removeprefix(source) for line in lines if (ROOT / line).exists()}
        assert files and files <= names, files - names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"ajet", *find_plugins(ROOT)}
    assert not [name for name in names if {"__pycache__", "tests", "ajet_testing"} & set(name.split("/"))]
    (entry,) = (name for name in names if name.endswith("entry_points.txt") and name.count("/") == 1)
    told = zipfile.ZipFile(wheel).read(entry).decode()
    assert "ajet = ajet.cli.launcher:main" in told and "[vllm." not in told, (
        "vLLM's plug-in groups are read by vLLM itself"
    )


def test_the_unpacked_wheel_is_what_runs(unpacked: Path, tmp_path: Path) -> None:
    checkout = "[p for p in sys.path if os.path.exists(os.path.join(p, 'pyproject.toml'))]"  # of the editable install
    told = f"import os, sys; sys.path[:] = [p for p in sys.path if p not in {checkout}]; "
    told += "import ajet; from ajet.schema.commands import format_extra_install; print(ajet.__file__)"
    told += "; print(format_extra_install('local'))"
    told += "; from ajet_aworld.packages import install_finders; install_finders()"
    told += "; import train.adapter.verl.common as c, env.train_env as e; print(c.__file__); print(e.__file__)"
    place, advice, *names = python(unpacked, tmp_path, "-c", told).stdout.splitlines()
    assert all(Path(name).is_relative_to(unpacked / "ajet_aworld" / "names") for name in names) and len(names) == 2
    assert Path(place).is_relative_to(unpacked)
    assert '"ajet[local]' in advice and " -e " not in advice, "a wheel is not installed from a clone"


def test_scripts_find_aworlds_names_by_the_printed_folder(unpacked: Path, tmp_path: Path) -> None:
    (printed,) = python(unpacked, tmp_path, "-m", "ajet", "aworld", "path").stdout.splitlines()
    assert Path(printed) == unpacked / "ajet_aworld" / "names"
    (tmp_path / "script.py").write_text(
        "from train.trainer.agent_trainer import AgentTrainer as A\nprint(A.__module__)\n"
    )
    site = Path(printed, *[".."] * 2)
    done = python(Path(f"{printed}{os.pathsep}{site}"), tmp_path, "script.py")
    assert done.stdout.startswith("ajet_aworld."), done.stderr


def test_code_runs_in_a_sandbox_of_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    told = "import ajet_sandbox.choose as c; from ajet.schema.sandbox import Limits; print(c.__file__)"
    told += "; box = c.open_sandbox('none', Limits()); print(box.python('print(6 * 7)').stdout.decode()); box.close()"
    place, said = python(unpacked, tmp_path, "-c", told).stdout.split()
    assert Path(place).is_relative_to(unpacked) and said == "42"


def test_help_works_from_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    done = python(unpacked, tmp_path, "-m", "ajet.cli.launcher", "--help")
    assert done.returncode == 0 and "--backbone" in done.stdout, done.stdout + done.stderr


def test_a_tutorial_yaml_composes_from_any_folder(unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "math_agent.yaml").write_text(TUTORIAL_YAML)
    done = python(unpacked, tmp_path, "-m", "ajet.cli.launcher", "config", "validate", "--conf", "mine/math_agent.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_viewers_pages_are_in_the_wheel(unpacked: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    done = python(unpacked, tmp_path, "-m", "ajet.cli.launcher", "view", "one", "--exp-dir", ".", "--html", "one.html")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "uPlot" in (tmp_path / "one.html").read_text()
