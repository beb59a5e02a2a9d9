"""Where AWorld's names are found, and where they are not: `import ajet` changes nothing in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet.config import resolve_reference
from ajet_aworld import packages
from tests.support.rollouts import stage

ROOT = Path(__file__).parents[3]
FRESH = """
import json, sys
sys.path[:] = [path for path in sys.path if path != sys.argv[1]]  # an editable install puts the root there
sys.path.insert(0, sys.argv[2])
before = [repr(finder) for finder in sys.meta_path], [*sys.path], [*sys.path_hooks]
loaded = {*sys.modules}
import ajet
assert before == ([repr(finder) for finder in sys.meta_path], [*sys.path], [*sys.path_hooks])
new = {name.partition(".")[0] for name in {*sys.modules} - loaded}
found = {}
for name in ("train", "env"):
    try:
        found[name] = __import__(name).__file__
    except ModuleNotFoundError:
        found[name] = None
print(json.dumps([sorted(new - sys.stdlib_module_names), found, getattr(ajet, "__version__")]))
"""
WORKFLOW = """
import sys
FINDERS = [type(finder).__module__ for finder in sys.meta_path]  # before an import of `train` could start anything
from train.adapter.common import get_agent_tool_env_and_servers
from env.train_env import words
from ajet import Workflow, WorkflowOutput

class Finds(Workflow):
    async def execute(self, workflow_task, tuner):
        from train.trainer.trainer_processor import TrainerProcessor
        await tuner.as_raw_openai_sdk_client().chat.completions.create(messages=[{"role": "user", "content": "hi"}])
        return WorkflowOutput(reward=1.0, metadata={"file": sys.modules["train"].__file__, "finders": FINDERS})
"""


def run_fresh(code: str, *arguments: str, cwd: Path, **variables: str) -> Any:
    """Return the JSON that a fresh interpreter prints."""
    environment = {"PATH": "", **variables}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder in which `ajet` is found and nothing else of the repository, as in site-packages."""
    (tmp_path / "site").mkdir()
    for package in (ROOT / "ajet", *(ROOT / "plugins").glob("ajet_*")):
        (tmp_path / "site" / package.name).symlink_to(package)
    return tmp_path / "site"


def test_import_ajet_only_defines_names(linked: Path, tmp_path: Path) -> None:
    foreign, found, version = run_fresh(FRESH, str(ROOT), str(linked), cwd=tmp_path)
    assert foreign == ["ajet"] and version
    assert found["env"] is None
    assert found["train"] is None or Path(found["train"]).parents[1].joinpath("aworld").is_dir(), (
        "AWorld's wheel has one"
    )


def test_names_of_the_users_are_untouched(linked: Path, tmp_path: Path) -> None:
    for name in ("train", "env"):
        (tmp_path / f"{name}.py").write_text("")
    _, found, _ = run_fresh(FRESH, str(ROOT), str(linked), cwd=tmp_path)
    assert found == {name: str(tmp_path / f"{name}.py") for name in ("train", "env")}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["process", "loops"])
def test_a_workers_user_code_finds_the_names(isolation: str, tmp_path: Path) -> None:
    (tmp_path / "finds.py").write_text(WORKFLOW)
    workflow = resolve_reference("finds.py->Finds", base=tmp_path)
    settings = {"isolation": isolation, "user_workflow": "finds.py->Finds"}
    with stage(workflow, folder=tmp_path, num_repeat=1, **settings) as made:
        episode = made.episode()
    assert episode.failure is None, episode.failure
    assert "ajet_aworld.packages" in episode.metadata["finders"]
    assert episode.metadata["file"] == str(packages.find_folder() / "train" / "__init__.py")


@pytest.mark.slow
def test_the_printed_folder_makes_scripts_find_them(linked: Path, tmp_path: Path) -> None:
    """As a script that ajet does not start: the folder that `ajet aworld path` prints is in PYTHONPATH."""
    code = (
        "import json\nfrom train.adapter.common import get_agent_tool_env_and_servers as get\nimport train, env, sys\n"
    )
    code += "quiet = [type(each).__module__ for each in sys.meta_path]\n"
    code += "print(json.dumps([train.__file__, env.__file__, quiet]))"
    paths = os.pathsep.join([str(packages.find_folder()), str(linked)])
    *files, finders = run_fresh(code, cwd=tmp_path, PYTHONPATH=paths)
    assert files == [str(packages.find_folder() / name / "__init__.py") for name in ("train", "env")]
    assert "ajet_aworld.packages" in finders, "from here on the import of AWorld is quiet"
