"""scripts/loaded_modules.py counts what a run imports."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "loaded_modules.py"
FOLDERS = (ROOT, ROOT / "plugins")
RECORDED = ROOT / "benchmarks" / "results" / "loaded_modules.json"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("loaded_modules", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_module_is_counted_once(script):
    loaded = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    counted = script.count_modules(loaded)
    assert sum(counted[side]["total"] for side in ("ours", "others")) == len(loaded)
    for side in counted.values():
        assert side["total"] == sum(side["packages"].values())


def test_modules_are_counted_by_package(script, tmp_path):
    counted = script.count_modules(
        {
            "ajet": f"{ROOT}/ajet/__init__.py",
            "ajet.kernel": f"{ROOT}/ajet/kernel.py",
            "ajet.record.files": f"{ROOT}/ajet/record/files.py",
            "ajet_ray.launch": f"{ROOT}/plugins/ajet_ray/launch.py",
            "torch.nn": "/packages/torch/nn/__init__.py",
            "json.decoder": "/python/json/decoder.py",
            "ajet.elsewhere": f"{tmp_path}/ajet/elsewhere.py",
            "_made": None,
        }
    )
    assert counted["ours"] == {"total": 4, "packages": {"ajet": 2, "ajet.record": 1, "ajet_ray": 1}}
    others = {"torch": 1, "standard library": 1, "ajet": 1, "made while running": 1}
    assert counted["others"] == {"total": 4, "packages": others}


@pytest.mark.parametrize("run", ["debug", "training"])
def test_the_recorded_figures_add_up(run):
    for side in json.loads(RECORDED.read_text())[run].values():
        assert side["total"] == sum(side["packages"].values()) > 100


WITNESS = """
import atexit, os, sys
executed = []
def notice(event, arguments):
    if event == "exec" and getattr(arguments[0], "co_name", "") == "<module>":
        executed.append(arguments[0].co_filename)
def write():
    with open(os.path.join({folder!r}, str(os.getpid())), "w") as file:
        file.write("\\n".join(executed))
sys.addaudithook(notice)
atexit.register(write)
"""
"""Notes each module's code that Python executes, whoever imports it and how."""


@pytest.mark.slow
def test_the_count_is_what_a_run_imports(tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    seen.mkdir()
    (tmp_path / "sitecustomize.py").write_text(WITNESS.format(folder=str(seen)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = [sys.executable, str(SCRIPT), "--run", "debug", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    names = [name.replace(".", "/") for name in json.loads(done.stdout)["debug"]["ours"]["modules"]]
    places = [folder / f"{name}{end}" for name in names for folder in FOLDERS for end in (".py", "/__init__.py")]
    listed = {str(place) for place in places if place.is_file()}
    assert len(listed) == len(names)
    run = max(seen.iterdir(), key=lambda file: file.stat().st_size).read_text().splitlines()
    executed = {file for file in run if file.startswith((f"{ROOT / 'ajet'}/", f"{ROOT / 'plugins'}/"))}
    assert str(ROOT / "ajet" / "gateway" / "server.py") in executed
    assert listed == executed
