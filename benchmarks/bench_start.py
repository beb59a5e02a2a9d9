"""How long `ajet --help` takes, against the `--help` of a bare typer app with one command: at most 1.3 times.

Then from the command to the first sampled token of a training on the local backbone (SmolLM2-135M, bfloat16), against
a program that imports torch and transformers and loads the same tokenizer and weights: at most 1.3 times; and how long
until something is on the screen: at most a second by the clock, which asks for a quiet machine. Without the rehearsal
of an update, which a machine with room for four leaves out by itself. The first start, which is not counted, holds the
model against its eager pass; later ones find that kept.

All run in fresh processes, in turns, so that whatever else the machine does meets both; the ratio is that of the
medians, and the spread of the single runs is printed with it. Of the first token the ratio is one of processor time,
since one core does all of it; seconds are printed beside. Exits 1 above a limit, or when `ajet --help` imports
something heavy.

    python benchmarks/bench_start.py [--runs 25] [--token-runs 5]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ratios import kept

LIMIT, SEEN_S = 1.3, 1.0
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

LOADS = """\
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

AutoTokenizer.from_pretrained(sys.argv[1])
AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
"""
AGENT = """\
import os


async def agent(task, tuner):
    client = tuner.as_raw_openai_sdk_client()
    reply = await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Say it."}], max_tokens=1
    )
    assert reply.choices
    os._exit(0)  # the first token is there: the clock stops
"""
YAML = """\
ajet:
  model: {path: "embedded:smollm2-135m", dtype: bfloat16}
  task_reader: {type: random_dummy}
  rollout: {user_workflow: workflow.py->agent, max_model_len: 256, num_repeat: 2, max_env_worker: 1}
  data: {train_batch_size: 1, max_prompt_length: 128, max_response_length: 64}
  trainer_common: {total_training_steps: 1, use_kl_loss: false, device: cpu}
"""


def first_token(folder: Path, command: list[str]) -> tuple[float, float, float]:
    """Wall seconds of a process that ends at its first token, those until it wrote something, and its processor's."""
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        said = process.stdout.read(1)
        seen = time.perf_counter() - began
        said += process.stdout.read()
    took = time.perf_counter() - began
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{said.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, seen, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def from_command_to_token(runs: int) -> bool:
    """Measure, print, and judge."""
    from ajet.engine.model_source import locate_model
    from ajet.engine.models import prepare_folder

    model = str(prepare_folder(locate_model("embedded:smollm2-135m")))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (("loads.py", LOADS), ("workflow.py", AGENT), ("x.yaml", YAML)):
            (folder / file).write_text(text)
        commands = {
            "loading": [sys.executable, "loads.py", model],
            "ajet": [
                sys.executable,
                "-m",
                "ajet",
                "--conf",
                "x.yaml",
                "--backbone",
                "local",
                "--fresh",
                "--no-rehearsal",
            ],
        }
        found: dict[str, list[tuple[float, float, float]]] = {each: [] for each in commands}
        for run in range(runs + 1):
            for each in sorted(commands, reverse=run % 2 == 0):
                measured = first_token(folder, commands[each])
                if run:  # the first fills the file cache
                    found[each].append(measured)
    took, seen, used = ({each: statistics.median(column) for each, column in (
        (each, [row[at] for row in rows]) for each, rows in found.items())} for at in range(3))  # fmt: skip
    ratio = used["ajet"] / used["loading"]
    print(f"first token: {used['ajet']:.1f} s of processor time ({took['ajet']:.1f} s); torch, transformers and the "
          f"weights alone {used['loading']:.1f} s ({took['loading']:.1f} s); {runs} runs")  # fmt: skip
    print(f"ratio {ratio:.2f} (at most {LIMIT}); something on the screen after {seen['ajet']:.2f} s (at most "
          f"{SEEN_S:g})")  # fmt: skip
    soon = kept("seconds until something is on the screen", seen["ajet"], at_most=SEEN_S)
    return kept("command to first sampled token against loading alone", ratio, at_most=LIMIT) and soon


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
    parser.add_argument("--token-runs", type=int, default=5)
    options = parser.parse_args()
    runs = options.runs
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
    quick = kept("ajet --help against a bare app", ratio, at_most=LIMIT) and not imported
    return int(not (from_command_to_token(options.token_runs) and quick))


if __name__ == "__main__":
    sys.exit(main())
