"""What our part costs on Trinity: a training step against `trinity run` with Trinity's own workflow.

One setting for both (benchmarks/verl_peer/settings.py): one question, one reply, the same reward, lengths, engine,
optimizer and CPU patches. Theirs gets the config that ours hands to Trinity, but for the classes that are ours: there
it has Trinity's one-turn workflow over its own chat, its file reader, GRPO and loss. Whole commands, in turns; the
median of the steps after the first `--warm`. At most 1.1. Beside it the processor time of a step, of all processes of
the command together and of each kind of them: the ratio to go by where others use the machine (`--processor-time`).

    python benchmarks/bench_trinity.py [--tasks 8] [--samples 8] [--reply 64] [--steps 12] [--rounds 2]
        [--processor-time]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "verl_peer"))

from one_turn import COUNT, question
from ratios import kept
from settings import Setting, model_of_no_sense

ROOT, PEER = Path(__file__).parents[1], Path(__file__).parent / "trinity_peer"
LIMIT, TIMEOUT = 1.1, 1800.0
MARK = "BENCH_TRINITY_RUN"
"""A variable that all processes of a run have."""
LOOK_S = 0.2
"""Between two looks whether a step is over."""
SHOWN = 6
"""Kinds of processes."""


def main() -> int:
    """Measure, print, judge. The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--reply", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", type=int, default=2, help="steps that do not count")
    parser.add_argument("--processor-time", action="store_true", help="hold the limit against it")
    args = parser.parse_args()
    sides: dict[str, list[dict[str, Any]]] = {"trinity": [], "ours": []}
    with tempfile.TemporaryDirectory(prefix="bt_") as place:
        model = model_of_no_sense(Path(place) / "random")
        setting = Setting(model, args.tasks, args.samples, args.reply, args.steps)
        print(f"tiny-tools with random weights, {args.tasks} tasks of {args.samples} samples, replies of at most "
              f"{args.reply} tokens; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
        for turn in range(args.rounds):
            for side, run in (("trinity", theirs), ("ours", ours)):
                folder = Path(place) / f"{side}-{turn}"
                folder.mkdir()
                found = run(setting, folder)
                sides[side] += found[args.warm :]
                middle = statistics.median(each["seconds"] for each in found[args.warm :])
                print(
                    f"  {side:8} {len(found)} steps, {middle:.2f} s a step; load {os.getloadavg()[0]:.1f}", flush=True
                )
    told = {side: told_of(side, rows) for side, rows in sides.items()}
    clock, processor = (told["ours"][each] / told["trinity"][each] for each in ("seconds", "processor"))
    print(f"ratio {clock:.2f} by the clock, {processor:.2f} by processor time (at most {LIMIT})")
    ratio = processor if args.processor_time else clock
    return int(not kept("step, against trinity run", ratio, at_most=LIMIT))


def told_of(side: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Print a side's steps; their medians."""
    all_of_them = sorted(each["seconds"] for each in rows)
    update = statistics.median(each["update"] for each in rows)
    middle = {each: statistics.median(row[each] for row in rows) for each in ("seconds", "processor")}
    kinds = Counter[str]()
    for row in rows:
        kinds.update(row["kinds"])
    shares = ", ".join(f"{kind} {seconds / len(rows):.2f}" for kind, seconds in kinds.most_common(SHOWN))
    print(f"{side:8} {middle['seconds']:6.2f} s a step ({all_of_them[0]:.2f} to {all_of_them[-1]:.2f}), of which the "
          f"update {update:.2f}; {middle['processor']:.2f} s of processor time ({shares})")  # fmt: skip
    return middle


def ours(setting: Setting, folder: Path) -> list[dict[str, Any]]:
    """`ajet --backbone trinity --with-ray`: its steps."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", str(setting.yaml(folder)), "--backbone", "trinity"]
    clock = folder / "launcher_record" / "bench" / "metrics.jsonl"
    rows = _run([*command, "--with-ray"], folder, {"PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}, clock)
    return [{**row, "seconds": row["seconds/step"], "update": row["seconds/update"]} for row in rows]


def theirs(setting: Setting, folder: Path) -> list[dict[str, Any]]:
    """`trinity run`: its steps."""
    from ajet_trinity import cpu
    from ajet_trinity.package import require_trinity

    aside = require_trinity()
    (folder / "config.json").write_text(json.dumps(plain_config(setting, folder)))
    paths = [PEER, cpu.PLUGIN, ROOT, *([aside] if aside is not None else [])]
    environment = {
        **cpu.build_environment(),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "RAY_worker_niceness": "0",
    }
    clock = folder / "clock.jsonl"
    command = [sys.executable, str(PEER / "plain.py"), str(folder / "config.json"), str(clock)]
    rows = _run(command, folder, environment, clock)
    if (explored := clock.with_suffix(".explored").read_text().split()) != [str(row["step"]) for row in rows]:
        raise SystemExit(f"Trinity explored the steps {explored} for {len(rows)} of training")
    return rows


def plain_config(setting: Setting, folder: Path) -> dict[str, Any]:
    """What ours hands to Trinity, with Trinity's own classes where ours stand."""
    from ajet.config import load_experiment
    from ajet_trinity.config import TrinityLaunch, compose_trinity_config

    experiment = load_experiment(setting.yaml(folder), backbone="trinity", exp_dir=folder / "launcher_record")
    launch = TrinityLaunch(folder / "trinity", "bench", setting.steps)
    config = compose_trinity_config(experiment, model_folder=Path(setting.model), run=launch)
    data = folder / "questions"
    data.mkdir()
    lines = (json.dumps({"question": question(number), "answer": ""}) + "\n" for number in range(COUNT))
    (data / "train.jsonl").write_text("".join(lines))
    own = ("sample_strategy", "advantage_fn", "policy_loss_fn", "kl_penalty_fn")
    algorithm = {name: value for name, value in config["algorithm"].items() if name not in own}
    config["algorithm"] = {**algorithm, "algorithm_type": "grpo"}
    config["buffer"]["explorer_input"]["taskset"] = {
        "name": "questions",
        "storage_type": "file",
        "path": str(data),
        "split": "train",
        "format": {"prompt_key": "question", "response_key": "answer"},
        "default_workflow_type": "simple_workflow",  # the async one samples a group for each of its members
        "default_reward_fn_type": "plain.ShareOfLetters",
    }
    config["buffer"]["trainer_input"]["experience_buffer"] = {"name": "rows", "storage_type": "queue"}
    config["explorer"]["max_timeout"] = 600
    config["continue_from_checkpoint"] = False
    config["monitor"] = {"monitor_type": "plain.Clock"}
    return config


def _run(command: list[str], folder: Path, environment: dict[str, str], clock: Path) -> list[dict[str, Any]]:
    """A command to its end: the rows of steps that it writes, each with the processor time since the one before."""
    mark, used, rows = uuid.uuid4().hex, Counter[str](), list[dict[str, Any]]()
    until = time.monotonic() + TIMEOUT
    with (folder / "log.txt").open("w+") as log:
        going = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment, MARK: mark}
        )
        while going.poll() is None:
            if time.monotonic() > until:
                going.terminate()
            for row in _steps(clock)[len(rows) :]:
                now = _processor_time(mark)
                kinds = {kind: seconds - used[kind] for kind, seconds in now.items()}
                rows.append({**row, "processor": sum(kinds.values()), "kinds": kinds})
                used = now
            time.sleep(LOOK_S)
        if going.returncode:
            log.seek(0)
            raise SystemExit(f"{command[1]} failed:\n{log.read()[-6000:]}")
    return rows


def _steps(clock: Path) -> list[dict[str, Any]]:
    """The rows that are whole."""
    if not clock.exists():
        return []
    found = [json.loads(line) for line in clock.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [row for row in found if "seconds" in row or "seconds/step" in row]


def _processor_time(mark: str) -> Counter[str]:
    """Seconds of the processes that live and have the mark, by what they are."""
    found = Counter[str]()
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get(MARK) == mark:
                times, words = each.cpu_times(), each.cmdline()
                first = words[0] if words else each.name()
                found[first.split("::")[-1].split(".")[0] if "::" in first else Path(first).name] += (
                    times.user + times.system
                )
    return found


if __name__ == "__main__":
    sys.exit(main())
