"""Tutorials as their READMEs have them: the commands, and the rewards that come of them.

With `TUTORIAL_SEED=2` in the environment the runs have that seed in place of the YAML's: the claims are to hold for it,
too. What models begin with (demonstrations, made weights) stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.snippets import ROOT
from tests.support.ajet_process import ajet, environment, metric_rows

TUTORIALS = ROOT / "tutorial"
SEED = [f"seed={seed}"] if (seed := os.environ.get("TUTORIAL_SEED")) else []


def prints(program: Path, into: Path) -> None:
    """`python PROGRAM > INTO`."""
    with into.open("w") as out:
        subprocess.run([sys.executable, str(program)], stdout=out, check=True, timeout=120,
                       env=environment(PYTHONPATH=str(ROOT)))  # fmt: skip


def taught(yaml: Path, cwd: Path, *more: str) -> str:
    """`ajet sft` and `ajet export`; answers what makes the model of a run."""
    done = ajet("sft", "--conf", str(yaml), "trainer_common.threads=1", *more, cwd=cwd, timeout=900)
    assert done.returncode == 0, done.stdout
    (run,) = (cwd / "launcher_record").glob("*_sft")
    done = ajet("export", run.name, cwd=cwd)
    assert done.returncode == 0, done.stdout
    (folder,) = (run / "exports").iterdir()
    return f"model.path={folder}"


def learned(yaml: Path, cwd: Path, run: str, *more: str) -> tuple[list[float], list[float]]:
    """`ajet --conf YAML`; the rewards of the validations and of the training steps, each in order."""
    given = ["--conf", str(yaml), "--backbone", "local", "trainer_common.threads=1", *SEED, *more]
    done = ajet(*given, cwd=cwd, timeout=2000)
    assert done.returncode == 0, done.stdout
    rows = metric_rows(cwd / "launcher_record" / run)
    held_out, trained = ([row[name] for row in rows if name in row] for name in ("validation/reward", "train/reward"))
    return held_out, trained
