"""One setting trained with the code of one version, in a process of its own; answers the folder of its results.

Invariant: both versions run in one place of one machine, one after the other, on one thread, with one Python
environment, the same YAML and the same agent; only PYTHONPATH differs. What is run is the command line, which changes
least; the credit of verl has a driver of its own (`verl_credit.py`), that of the version if it has one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from same_as_parts.settings import SETTINGS, VERL

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 900


class Failed(Exception):
    """A run did not end well; the text is what it printed last."""


def results(name: str, code: Path, place: Path, keep: Path) -> Path:
    """Run setting `name` with the code in `code`, in the folder `place`, and move what it left to `keep`."""
    shutil.rmtree(place, ignore_errors=True)
    if name == VERL:
        driver = code / "scripts" / "same_as_parts" / "verl_credit.py"
        driver = driver if driver.exists() else HERE / "verl_credit.py"
        place.mkdir()
        _run([str(driver), str(place / "out")], code, place)
        made = place / "out"
    else:
        shutil.copytree(HERE / "project", place)
        launch = ["-m", "ajet.cli.launcher", "--conf", "same.yaml", f"experiment_name={name}"]
        _run([*launch, *SETTINGS[name]], code, place)
        made = place / "launcher_record" / name
    os.replace(made, keep)
    return keep


def _run(arguments: list[str], code: Path, place: Path) -> None:
    alone = {"PYTHONPATH": str(code), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=place, env={**os.environ, **alone, "NO_COLOR": "1", "TERM": "dumb"},
        timeout=TIMEOUT_S, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"exit {done.returncode} with the code in {code}:\n{done.stdout[-3000:]}")
