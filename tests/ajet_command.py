"""Run the `ajet` command as a person would: in its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path


def environment(**more: str) -> dict[str, str]:
    """This environment with one thread and a wide, colourless terminal."""
    fixed = {"OMP_NUM_THREADS": "1", "COLUMNS": "140", "NO_COLOR": "1", "TERM": "dumb"}
    return {**os.environ, **fixed, **more}


def command(*arguments: str) -> list[str]:
    """The command line of `ajet ARGUMENTS`."""
    return [sys.executable, "-m", "ajet.cli.launcher", *arguments]


def ajet(*arguments: str, cwd: Path, timeout: float = 300, **env: str) -> subprocess.CompletedProcess[str]:
    """Run to its end; stdout and stderr together in `.stdout`."""
    return subprocess.run(
        command(*arguments), cwd=cwd, env=environment(**env), timeout=timeout, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def start(*arguments: str, cwd: Path, log: Path, **env: str) -> subprocess.Popen[str]:
    """Start it in a session of its own, output into `log`."""
    with log.open("a") as out:
        return subprocess.Popen(
            command(*arguments), cwd=cwd, env=environment(**env), stdout=out, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True, text=True,
        )  # fmt: skip


def metric_rows(run: Path) -> list[dict]:
    """The run's metrics.jsonl."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
