"""What our part costs on verl: against verl's own agent loop, verl's own command, verl's own client.

All three compare one setting (benchmarks/verl_peer/settings.py): one question, one reply, 16 tasks of 8 samples a
step; verl's side gets the config that ours hands to verl, but for the classes that are ours. Without an accelerator
both run on `trainer_common.device: cpu`.

`loop`: the step's rollout, from the dispatch of its tasks to the last group that is scored and in the TransferQueue.
    verl's SingleTurnAgentLoop with a rule for a reward, against a workflow that asks once through the OpenAI SDK,
    with gateway, judge and record. Both at one vLLM server, in turns, each in an agent-loop process of its own. No
    trainer: its replay buffer looks for finished groups every 2 s, which would hide what differs. At most 1.1.
`client`: tokens a second of the same prompts through gateway and session, against verl's server client called with
    their ids; one process, one loop, the same server, 64 requests at a time.
`launch`: `ajet --backbone verl --with-ray` against `python -m verl.trainer.main_ppo`: seconds from the command to the
    first token of the rollout, by phase, at most 0.8; the CPU seconds of all processes until then, which other load on
    the machine moves less; and, once both trainers are warm, a rollout inside the whole command (from its dispatch to
    its last session in the TransferQueue) and a step, at most 1.05 each. A launch of each comes first and is not
    counted, since its files are cold; then they take turns, each as often first as second.

    python benchmarks/bench_verl.py [--parts loop,launch] [--model embedded:smollm2-135m] [--rounds 9] [--launches 2]
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
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "verl_peer"))

import psutil
from choices import some_of
from family import Family
from ratios import kept
from settings import Setting, configs, experiment_of, model_of_no_sense, overrides

HERE = Path(__file__).parent
LIMIT, FIRST_TOKEN, WITHIN = 1.1, 0.8, 1.05
"""Of verl's own: its loop at one server; from the command to the first token; a rollout and a step of the command."""
TIMEOUT = 900.0
LOOK_S = 0.1
"""Between two looks at the clock, after which the processes are asked what they have used."""
PHASES = (
    ("Ray asked", "config composed and checked"),
    ("Ray there", "Ray"),
    ("trainer imported", "the trainer's process, its imports, TransferQueue"),
    ("data there", "tokenizer and data set"),
    ("FSDP there", "worker processes, FSDP"),
    ("server there", "reward process, vLLM server"),
    ("dispatch", "checkpoint, first weights to the server, first batch"),
    ("first session", "the agent-loop process, its imports (began beside the line above)"),
    ("first token", "first request and its first token"),
)
"""Each ends with its event."""


def main() -> int:
    """Measure, print, judge. The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="loop,launch", type=some_of("loop", "launch"))
    parser.add_argument("--model", help="default: of tiny-tools' size, weights at random")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--reply", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--launches", type=int, default=2, help="counted ones of each side: an even number")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    if args.launches < 2 or args.launches % 2:
        parser.error("--launches is even, so that each side is as often first as second")
    good = True
    with tempfile.TemporaryDirectory(prefix="bench_verl_") as folder:
        model = args.model or model_of_no_sense(Path(folder) / "random")
        setting = Setting(model, args.tasks, args.samples, args.reply, args.steps)
        print(f"{args.model or 'tiny-tools with random weights'}, {setting.tasks} tasks of {setting.samples} samples, "
              f"replies of at most {setting.reply} tokens; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
              flush=True)  # fmt: skip
        if "loop" in args.parts:
            good &= at_one_server(setting, Path(folder), args.rounds, args.concurrency)
        if "launch" in args.parts:
            good &= whole_commands(setting, Path(folder), args.launches)
    return int(not good)


def at_one_server(setting: Setting, folder: Path, rounds: int, concurrency: int) -> bool:
    """`loop` and `client`. Whether the limit is kept."""
    given = folder / "setting.json"
    given.write_text(json.dumps(asdict(setting)))
    script = HERE / "verl_peer" / "one_server.py"
    command: list[Any] = [sys.executable, script, given, setting.yaml(folder), str(rounds), str(concurrency)]
    with (folder / "one_server.log").open("w+") as log:
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True, timeout=TIMEOUT)
        if done.returncode:
            log.seek(0)
            raise SystemExit(f"one_server.py failed:\n{log.read()[-4000:]}")
    found = [json.loads(line.removeprefix("BENCH ")) for line in done.stdout.splitlines() if line.startswith("BENCH ")]
    warm: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for each in found:
        if each["warm"]:
            warm[each["part"], each["side"]].append(each)

    def seconds(part: str, side: str) -> float:
        return statistics.median(each["seconds"] for each in warm[part, side])

    def rate(part: str, side: str) -> float:
        return statistics.median(each["tokens"] / each["seconds"] for each in warm[part, side])

    def spread(part: str, side: str) -> str:
        said = sorted(each["seconds"] for each in warm[part, side])
        return f"{said[0]:.2f} to {said[-1]:.2f}"

    ratio = seconds("loop", "ours") / seconds("loop", "verl")
    print(f"loop: dispatch to last scored group, medians of {rounds} turns at one server")
    for side, name in (("verl", "verl's SingleTurnAgentLoop"), ("ours", "our workflow, gateway, judge, record")):
        tokens = statistics.mean(each["tokens"] for each in warm["loop", side])
        episodes = warm["loop", side][0]["episodes"]
        print(f"  {name:38} {seconds('loop', side):6.2f} s ({spread('loop', side)}), {episodes} episodes, "
              f"{tokens:.0f} tokens, {rate('loop', side):.0f} tokens/s")  # fmt: skip
    episodes = setting.tasks * setting.samples
    extra = (seconds("loop", "ours") - seconds("loop", "verl")) / episodes
    cpu = {
        side: statistics.median(each["cpu"] for each in warm["loop", side]) / episodes * 1000
        for side in ("verl", "ours")
    }
    print(f"  ratio {ratio:.2f} (at most {LIMIT}); {extra * 1000:+.1f} ms an episode")
    print(f"  CPU of all processes, server included: verl {cpu['verl']:.1f}, ours {cpu['ours']:.1f} ms an episode; "
          f"ratio {cpu['ours'] / cpu['verl']:.2f}", flush=True)  # fmt: skip
    print(f"client: the same prompts, {concurrency} at a time, medians of {rounds} turns")
    for side, name in (("client", "verl's server client, called directly"), ("gateway", "gateway and session")):
        print(f"  {name:38} {rate('client', side):6.0f} tokens/s ({spread('client', side)} s a turn)")
    print(f"  ratio {rate('client', 'gateway') / rate('client', 'client'):.2f} of the tokens a second", flush=True)
    return kept("loop, against verl's", ratio, at_most=LIMIT)


@dataclass
class Launch:
    """One command's run."""

    after: dict[str, float]
    """Seconds from the command to the first of each event."""
    used: dict[str, Counter[str]]
    """Processor seconds of each kind of process until each of them."""
    timings: list[dict[str, float]]
    """verl's `timing_s` of each step."""
    rollouts: list[float]
    """Seconds from each step's dispatch to its last session in the TransferQueue."""
    stretches: dict[str, list[Counter[str]]]
    """Processor seconds of each kind of process from each dispatch: to the batch (`rollout`), to the step's end."""

    @property
    def cpu(self) -> float:
        """Seconds that all its processes had used at the first token."""
        return self.used["first token"].total()


def whole_commands(setting: Setting, folder: Path, launches: int) -> bool:
    """`launch`. Whether its limits are kept."""
    from ajet_verl import cpu

    yaml = setting.yaml(folder)
    experiment = experiment_of(yaml)
    theirs = overrides(configs(experiment)[1])
    commands = {
        "ours": [sys.executable, "-m", "ajet.cli.launcher", "--conf", str(yaml), "--backbone", "verl", "--with-ray"],
        "verl": [sys.executable, "-m", "verl.trainer.main_ppo", *theirs],
    }
    on_cpu = cpu.build_environment() if any(each == "++trainer.device='cpu'" for each in theirs) else {}
    made: dict[str, list[Launch]] = {"ours": [], "verl": []}
    for number, side in turns(launches):
        more = ["--fresh"] if side == "ours" else []
        environment = dict(on_cpu) | {"RAY_ADDRESS": "local"} if side == "verl" else {}
        launch = launched([*commands[side], *more], folder / f"{side}{number}", environment)
        if number:
            made[side].append(launch)
        print(f"launch {number or 'not counted'}, {side}: first token after {launch.after['first token']:.1f} s, "
              f"{launch.cpu:.0f} CPU seconds; {len(launch.timings)} steps", flush=True)  # fmt: skip
    return shown(made)


def turns(launches: int) -> list[tuple[int, str]]:
    """(number, side) of each launch in its order; number 0 fills the file cache and is not counted."""
    orders = (("verl", "ours"), ("ours", "verl"))
    return [(number, side) for number in range(launches + 1) for side in orders[number % 2]]


def launched(command: list[str], folder: Path, environment: dict[str, str]) -> Launch:
    """Run a command to its end and read the clock."""
    folder.mkdir()
    clock = folder / "clock.jsonl"
    clock.touch()
    paths = [str(HERE / "verl_peer" / "clock"), str(HERE.parent), environment.get("PYTHONPATH", "")]
    path = os.pathsep.join(each for each in paths if each)
    common = {"VERL_BENCH_CLOCK": str(clock), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
              "RAY_USAGE_STATS_ENABLED": "0", "VLLM_NO_USAGE_STATS": "1", "NO_COLOR": "1"}  # fmt: skip
    log = (folder / "out.txt").open("w+")
    began = time.time()
    process = psutil.Popen(
        command, cwd=folder, env={**os.environ, **environment, **common}, stdout=log, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    family, told = Family(process), Told(clock)
    used: list[tuple[str, Counter[str]]] = []
    try:
        while process.poll() is None:
            if time.time() - began > TIMEOUT:
                raise SystemExit(f"{command[:4]} does not end")
            family.search()
            if events := [event for event in told.new() if event != "session over"]:
                now = family.used()
                used += [(event, now) for event in events]
            time.sleep(LOOK_S)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{command[:4]} failed:\n{log.read()[-4000:]}")
    finally:
        family.end()
    return read(clock, began, used)


class Told:
    """The clock's events, in its file's order."""

    def __init__(self, clock: Path) -> None:
        self._clock, self._at = clock, 0

    def new(self) -> list[str]:
        """Those since the last look."""
        with self._clock.open() as file:
            file.seek(self._at)
            text = file.read()
        lines = text[: text.rfind("\n") + 1]
        self._at += len(lines)
        return [json.loads(line)["event"] for line in lines.splitlines()]


def read(clock: Path, began: float, used: list[tuple[str, Counter[str]]]) -> Launch:
    """What the clock says, and what was used at each event."""
    events = sorted((json.loads(line) for line in clock.read_text().splitlines()), key=lambda each: each["at"])
    after: dict[str, float] = {}
    for each in events:
        after.setdefault(each["event"], each["at"] - began)
    first: dict[str, Counter[str]] = {}
    for event, now in used:
        first.setdefault(event, now)
    timings = [each["timing"] for each in events if each["event"] == "step"]
    rollouts: list[float] = []
    dispatched = None
    for each in events:
        if each["event"] == "dispatch":
            dispatched = each["at"]
            rollouts.append(0.0)
        elif each["event"] == "session over" and dispatched is not None:
            rollouts[-1] = each["at"] - dispatched
    stretches: dict[str, list[Counter[str]]] = {"rollout": [], "step": []}
    marks = {"dispatch": Counter[str]()}
    for event, now in used:
        if event in ("sampled", "step"):
            stretches["rollout" if event == "sampled" else "step"].append(
                Counter(subtract_counts(now, marks["dispatch"]))
            )
        marks[event] = now
    return Launch(after, first, timings, rollouts, stretches)


def subtract_counts(now: Counter[str], before: Counter[str]) -> dict[str, float]:
    """What was used between two looks; a process that has ended since takes nothing away."""
    return {name: max(seconds - before[name], 0.0) for name, seconds in now.items()}


def shown(made: dict[str, list[Launch]]) -> bool:
    """Print both sides. Whether the limits are kept."""
    print(f"launch: each phase from the command to the first token, medians of {len(made['ours'])} launches")
    print(f"  {'':66} {'seconds':>7} {'':>7}   {'of the processor':>16}")
    print(f"  {'':66} {'verl':>7} {'ours':>7}   {'verl':>8} {'ours':>7}")
    last = ""
    for event, name in PHASES:
        clock, used = (
            {side: statistics.median(each[event] - each.get(last, 0.0) for each in found[side]) for side in made}
            for found in (
                {side: [each.after for each in made[side]] for side in made},
                {side: [{at: of.total() for at, of in each.used.items()} for each in made[side]] for side in made},
            )
        )
        print(f"  {name:66} {clock['verl']:7.1f} {clock['ours']:7.1f}   {used['verl']:8.1f} {used['ours']:7.1f}")
        last = event
    whole = {side: statistics.median(each.after["first token"] for each in made[side]) for side in made}
    cpu = {side: statistics.median(each.cpu for each in made[side]) for side in made}
    ratio = whole["ours"] / whole["verl"]
    print(f"  {'command to first token':66} {whole['verl']:7.1f} {whole['ours']:7.1f}   ratio {ratio:.2f} "
          f"(at most {FIRST_TOKEN})")  # fmt: skip
    print(f"  {'CPU seconds of all processes until then':66} {cpu['verl']:7.1f} {cpu['ours']:7.1f}   ratio "
          f"{cpu['ours'] / cpu['verl']:.2f}")  # fmt: skip
    kept("launch: processor time to the first token, against verl's", cpu["ours"] / cpu["verl"])
    _by_kind("until the first token", {side: [each.used["first token"] for each in made[side]] for side in made})
    good = kept("launch: command to first token, against verl's", ratio, at_most=FIRST_TOKEN)
    print("  steps after the second, medians (the replay buffer looks every 2 s, so `gen` is a multiple of that)")
    for name in ("gen", "old_log_prob", "adv", "update_actor", "update_weights", "step"):
        per = {side: _warm([each.timings for each in made[side]], name) for side in made}
        if all(per.values()):
            a, b = (statistics.median(per[side]) for side in ("verl", "ours"))
            print(f"  {'timing_s/' + name:66} {a:7.2f} {b:7.2f}   ratio {b / a:.2f}")
            if name == "step":
                good &= kept("launch: a step of the whole command, against verl's", b / a, at_most=WITHIN)
    per = {side: [value for each in made[side] for value in each.rollouts[2:]] for side in made}
    a, b = (statistics.median(per[side]) for side in ("verl", "ours"))
    print(f"  {'dispatch to last session in the TransferQueue':66} {a:7.2f} {b:7.2f}   ratio {b / a:.2f}")
    for name, what in (("rollout", "from dispatch to its batch"), ("step", "from dispatch to the step's end")):
        spent = {side: [of for each in made[side] for of in each.stretches[name][2:]] for side in made}
        total = {side: statistics.median(of.total() for of in spent[side]) for side in made}
        print(f"  {'CPU seconds of all processes ' + what:66} {total['verl']:7.2f} {total['ours']:7.2f}   ratio "
              f"{total['ours'] / total['verl']:.2f}")  # fmt: skip
        kept(f"launch: processor time {what}, against verl's", total["ours"] / total["verl"])
        _by_kind(what, spent)
    within = kept("launch: a rollout inside the whole command, against verl's", b / a, at_most=WITHIN)
    if not (good and within):
        print(f"  MISSED: at most {FIRST_TOKEN} to the first token, {WITHIN} of a rollout and of a step")
    return good and within


def _by_kind(what: str, spent: dict[str, list[Counter[str]]]) -> None:
    """Print the processor seconds of each kind of process."""
    print(f"    of these {what}, by process:")
    per = {
        side: {name: statistics.median(each[name] for each in spent[side]) for name in set().union(*spent[side])}
        for side in spent
    }
    for name in sorted({*per["verl"], *per["ours"]}, key=lambda name: -max(per[side].get(name, 0.0) for side in per)):
        a, b = (per[side].get(name, 0.0) for side in ("verl", "ours"))
        if max(a, b) >= 0.05:
            print(f"      {name:62} {a:7.2f} {b:7.2f}")


def _warm(timings: list[list[dict[str, float]]], name: str) -> list[float]:
    return [step[name] for launch in timings for step in launch[2:] if name in step]


if __name__ == "__main__":
    sys.exit(main())
