"""What the benchmarks of tutorials with several seeds share: commands with one thread, recorded rows, and curves."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import IO, Any, NamedTuple

Rows = Sequence[Mapping[str, Any]]


class Seconds(NamedTuple):
    """What a command took."""

    processor: float
    wall: float


def run_python(*arguments: str, cwd: Path, paths: Sequence[Path], stdout: IO[str] | None = None) -> Seconds:
    """Run this Python with one thread and these paths, and return its seconds, with those of its children."""
    path = os.pathsep.join(filter(None, [*map(str, paths), os.environ.get("PYTHONPATH", "")]))
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, stdout=stdout, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Seconds(round(used, 1), round(time.monotonic() - started, 1))


def run_ajet(*arguments: str, cwd: Path, paths: Sequence[Path]) -> Seconds:
    """Run `ajet` with one thread, and return its seconds."""
    return run_python("-m", "ajet.cli.launcher", *arguments, cwd=cwd, paths=paths)


def learn_demonstrations(
    sft: Path, folder: Path, paths: Sequence[Path], *, program: Sequence[str] = (), model: str = "", run: str = ""
) -> Seconds | None:
    """Let a model learn from a tutorial's demonstrations, and return the seconds of `ajet`, None if it has learned.

    All files are in `folder`.

    Args:
        sft: The YAML of `ajet sft`, in the tutorial's folder.
        program: Program in the same folder that prints the demonstrations, with its arguments; empty if there is none.
        model: Folder of the model that the tutorial's `make_model.py` makes; empty if there is none.
        run: Run to export; empty if none is exported.
    """
    finished = folder / "learned_demonstrations"
    if finished.exists():
        return None
    if program:
        with (folder / "demonstrations.jsonl").open("w") as rows:
            run_python(str(sft.with_name(program[0])), *program[1:], cwd=folder, paths=paths, stdout=rows)
    if model:
        run_python(str(sft.with_name("make_model.py")), model, cwd=folder, paths=paths)
    seconds = [run_ajet("sft", "--conf", str(sft), "trainer_common.threads=1", cwd=folder, paths=paths)]
    if run:
        seconds.append(run_ajet("export", run, cwd=folder, paths=paths))
    finished.touch()
    return Seconds(*(round(sum(values), 1) for values in zip(*seconds, strict=True)))


def find_export(folder: Path, run: str) -> Path:
    """Return the only model that a run in `folder` exported."""
    [model] = (folder / "launcher_record" / run / "exports").iterdir()
    return model


def format_markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the recorded runs of a file, [] if there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def add_row(path: Path, row: Any) -> None:
    """Append a run, a dataclass, to the file."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def plot_range(axes: Any, curves: Sequence[Sequence[float]], label: str, colour: str | None = None) -> None:
    """Plot the mean of the seeds' curves over the steps, and their range."""
    steps = range(1, len(curves[0]) + 1)
    axes.plot(steps, [fmean(values) for values in zip(*curves, strict=True)], label=label, color=colour)
    lowest, highest = ([choose(values) for values in zip(*curves, strict=True)] for choose in (min, max))
    axes.fill_between(steps, lowest, highest, alpha=0.15, color=colour)


def make_parser(description: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """Return a parser with the arguments that these benchmarks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file that gets one row per run")
    parser.add_argument("--table", type=Path, help="print the table of this file")
    parser.add_argument("--picture", type=Path, help="draw the curves of the runs in --table into this PNG file")
    parser.add_argument("--folder", type=Path, help="folder for model and runs; default: a temporary one")
    parser.add_argument("--seeds", type=int, nargs="*", default=seeds)
    return parser


def report(
    arguments: argparse.Namespace, format_table: Callable[[Rows], str], draw_curves: Callable[[Rows, Path], None]
) -> None:
    """Print the table of the recorded runs, and draw their curves if --picture is set."""
    if table := arguments.table or arguments.out:
        rows = read_rows(table)
        print(format_table(rows))
        if arguments.picture:
            draw_curves(rows, arguments.picture)
