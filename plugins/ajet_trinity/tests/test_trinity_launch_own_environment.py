"""The environment of Trinity's own: on GPUs the command goes on in it as it was typed, before anything is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest

from ajet.schema.errors import UserError
from ajet_trinity import launch

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = "import json, os, sys; print(json.dumps([sys.prefix, sys.argv[1:], os.environ['SAID'], os.getcwd()]))"
LAUNCH = """
import sys
sys.path.insert(0, sys.argv.pop(1))
sys.prefix = sys.argv.pop(1)
sys.argv[0] = "ajet"
from ajet.cli.launcher import main
sys.exit(main())
"""


def made(prefix: Path) -> Path:
    """A stand-in of it: an environment with an `ajet`, script and package, that says how it was started."""
    own = prefix / launch.FOLDER
    venv.create(own, symlinks=True, with_pip=False)
    (packages,) = own.glob("lib/python3*/site-packages")
    (packages / "ajet").mkdir()
    (packages / "ajet" / "__main__.py").write_text(STAND_IN)
    (own / "bin" / "ajet").write_text("from ajet import __main__")
    return own


@pytest.mark.slow
def test_the_command_goes_on_there_as_it_was_typed(tmp_path: Path) -> None:
    own = made(tmp_path)
    workflow = "rollout: {user_workflow: 'agent.py->Agent'}"
    (tmp_path / "x.yaml").write_text(f"ajet: {{model: {{path: 'embedded:tiny-tools'}}, {workflow}}}")
    (tmp_path / "ajet").mkdir()
    (tmp_path / "ajet" / "__main__.py").write_text("raise SystemExit('AgentJet is cloned here')")
    (tmp_path / "agent.py").write_text("from ajet import Workflow\n\n\nclass Agent(Workflow):\n    pass\n")
    typed = ["--conf", "x.yaml", "--backbone", "trinity", "--with-ray", "trainer_common.device=cuda"]
    typed += ["task_reader.type=random_dummy"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"SAID": "kept"}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(ROOT), str(tmp_path), *typed], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and "the command continues with" in done.stdout, done.stdout
    prefix, arguments, said, where = json.loads(done.stdout.splitlines()[-1])
    assert (Path(prefix), arguments, said, Path(where)) == (own, typed, "kept", tmp_path)
    assert not (tmp_path / "launcher_record").exists()


def test_who_goes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert launch.find_python("cuda") is None, "it is not made"
    own = made(tmp_path)
    assert launch.find_python("cuda") == own / "bin" / "python"
    assert launch.find_python("cpu") is None
    for program in ("train.py", "tuning/__main__.py", "launcher.py"):
        monkeypatch.setattr(sys, "argv", [program, "--steps", "3"])
        with pytest.raises(UserError, match="this program runs in another") as refused:
            launch.continue_in(own / "bin" / "python")
        assert refused.value.do == f"{own}/bin/python {program} --steps 3"
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda python, arguments: started.append(arguments))
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=SimpleNamespace(name="ajet.launcher")))
    launch.continue_in(own / "bin" / "python")
    assert started == [[f"{own}/bin/python", "-m", "ajet", "--steps", "3"]]
    about = tmp_path / "trinity_rft-0.6.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: trinity-rft\nVersion: 0.6.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert launch.find_python("cuda") is None, "within it, it is there already"
