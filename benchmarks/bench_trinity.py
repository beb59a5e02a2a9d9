"""What our part costs on Trinity: a training step against `trinity run` with Trinity's own workflow.

One setting for both (benchmarks/verl_peer/settings.py): one question, one reply, the same reward, lengths, engine,
optimizer and CPU patches. Theirs gets the config that ours hands to Trinity, but for the classes that are ours: there
it has Trinity's one-turn workflow over its own chat, its file reader, GRPO and loss. Whole commands, in turns; the
median of the steps after the first `--warm`. At most 1.1.

    python benchmarks/bench_trinity.py [--tasks 8] [--samples 8] [--reply 64] [--steps 12] [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "verl_peer"))

from one_turn import COUNT, question
from ratios import kept
from settings import Setting, model_of_no_sense

ROOT, PEER = Path(__file__).parents[1], Path(__file__).parent / "trinity_peer"
LIMIT, TIMEOUT = 1.1, 1800.0


def main() -> int:
    """Measure, print, judge. The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--reply", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm", type=int, default=2, help="steps that do not count")
    args = parser.parse_args()
    sides: dict[str, list[dict[str, float]]] = {"trinity": [], "ours": []}
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
    seconds = {side: statistics.median(each["seconds"] for each in rows) for side, rows in sides.items()}
    for side, rows in sides.items():
        all_of_them = sorted(each["seconds"] for each in rows)
        update = statistics.median(each["update"] for each in rows)
        print(f"{side:8} {seconds[side]:6.2f} s a step ({all_of_them[0]:.2f} to {all_of_them[-1]:.2f}), of which the "
              f"update {update:.2f}")  # fmt: skip
    ratio = seconds["ours"] / seconds["trinity"]
    print(f"ratio {ratio:.2f} (at most {LIMIT})")
    return int(not kept("step, against trinity run", ratio, at_most=LIMIT))


def ours(setting: Setting, folder: Path) -> list[dict[str, float]]:
    """`ajet --backbone trinity --with-ray`: its steps."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", str(setting.yaml(folder)), "--backbone", "trinity"]
    _run([*command, "--with-ray"], folder, {"PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"})
    rows = map(json.loads, (folder / "launcher_record" / "bench" / "metrics.jsonl").read_text().splitlines())
    steps = [row for row in rows if "seconds/step" in row]
    return [{"seconds": row["seconds/step"], "update": row["seconds/update"]} for row in steps]


def theirs(setting: Setting, folder: Path) -> list[dict[str, float]]:
    """`trinity run`: its steps."""
    from ajet.backbone.trinity import cpu
    from ajet.backbone.trinity.package import require_trinity

    aside = require_trinity()
    (folder / "config.json").write_text(json.dumps(plain_config(setting, folder)))
    paths = [PEER, cpu.PLUGIN, ROOT, *([aside] if aside is not None else [])]
    environment = {**cpu.environment(), "PYTHONPATH": os.pathsep.join(map(str, paths)), "RAY_worker_niceness": "0"}
    clock = folder / "clock.jsonl"
    _run([sys.executable, str(PEER / "plain.py"), str(folder / "config.json"), str(clock)], folder, environment)
    return [json.loads(line) for line in clock.read_text().splitlines()]


def plain_config(setting: Setting, folder: Path) -> dict[str, Any]:
    """What ours hands to Trinity, with Trinity's own classes where ours stand."""
    from ajet.backbone.trinity.config import Launch, trinity_config
    from ajet.config import load_experiment

    experiment = load_experiment(setting.yaml(folder), backbone="trinity", exp_dir=folder / "launcher_record")
    launch = Launch(folder / "trinity", "bench", setting.steps)
    config = trinity_config(experiment, model_folder=Path(setting.model), run=launch)
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
        "default_workflow_type": "async_simple_workflow",
        "default_reward_fn_type": "plain.ShareOfLetters",
    }
    config["buffer"]["trainer_input"]["experience_buffer"] = {"name": "rows", "storage_type": "queue"}
    config["explorer"]["max_timeout"] = 600
    config["continue_from_checkpoint"] = False
    config["monitor"] = {"monitor_type": "plain.Clock"}
    return config


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    with (folder / "log.txt").open("w+") as log:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
            env={**os.environ, **environment},
        )
        if done.returncode:
            log.seek(0)
            raise SystemExit(f"{command[1]} failed:\n{log.read()[-6000:]}")


if __name__ == "__main__":
    sys.exit(main())
