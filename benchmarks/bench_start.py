"""How long `ajet --help` takes, against the `--help` of a bare typer app with one command: at most 1.3 times.

Both run in fresh processes, in turns, so that whatever else the machine does meets both; the ratio is that of the
medians, and the spread of the single runs is printed with it. Exits 1 above the limit, or when `ajet --help` imports
something heavy.

    python benchmarks/bench_start.py [--runs 25]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ratios import kept

LIMIT = 1.3
HEAVY = {"torch", "transformers", "ray", "datasets", "hydra", "pydantic"}
BARE = """\
import typer

app = typer.Typer()


@app.command()
def hello(name: str) -> None:
    \"\"\"Say hello.\"\"\"
    print(f"hello {name}")


app()
"""
OURS = "from ajet.cli.launcher import main\nmain()\n"


def seconds(script: Path, environment: dict[str, str]) -> float:
    """Wall time of one `python SCRIPT --help`."""
    began = time.perf_counter()
    subprocess.run([sys.executable, script, "--help"], env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def heavy_imports(environment: dict[str, str]) -> set[str]:
    """The heavy packages that `ajet --help` imports."""
    code = (
        "import sys\nfrom ajet.cli.launcher import main\ntry:\n    main(['--help'])\nfinally:\n    print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, text=True, capture_output=True)
    return HEAVY & {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


def main() -> int:
    """Measure, print, and judge. The exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=25)
    runs = parser.parse_args().runs
    environment = {**os.environ, "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as folder:
        scripts = {"bare": Path(folder, "bare.py"), "ajet": Path(folder, "ours.py")}
        scripts["bare"].write_text(BARE)
        scripts["ajet"].write_text(OURS)
        times: dict[str, list[float]] = {name: [] for name in scripts}
        for script in scripts.values():
            seconds(script, environment)  # compiles and fills the file cache
        for run in range(runs):
            for name in sorted(scripts, reverse=run % 2 == 0):
                times[name].append(seconds(scripts[name], environment))
    for name, spent in times.items():
        quarters = statistics.quantiles(spent, n=4)
        print(f"{name:<5} --help  {statistics.median(spent) * 1000:6.0f} ms  (middle half {quarters[0] * 1000:.0f} to "
              f"{quarters[2] * 1000:.0f}, {runs} runs)")  # fmt: skip
    ratio = statistics.median(times["ajet"]) / statistics.median(times["bare"])
    imported = heavy_imports(environment)
    print(f"ratio {ratio:.2f} (at most {LIMIT}); heavy imports: {', '.join(sorted(imported)) or 'none'}")
    return int(not kept("ajet --help against a bare app", ratio, at_most=LIMIT) or bool(imported))


if __name__ == "__main__":
    sys.exit(main())
