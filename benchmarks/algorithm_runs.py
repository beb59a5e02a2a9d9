"""Runs of the algorithms of 2026 beside GRPO, each under the condition for which its paper means it.

`CONDITIONS` is the plan: model, tasks, settings, steps and seeds of every run, written before the first run. Only how
often the starting models are right was measured before, to choose them. A run ends after its steps, whatever it
reached; nothing is repeated with other settings. Each run adds a row to
results/algorithm_runs.jsonl; rows that are there already are not run again.

    python benchmarks/algorithm_runs.py                       every run that is missing
    python benchmarks/algorithm_runs.py --only maxrl,echo     those of some conditions
    python benchmarks/algorithm_runs.py --table               the means over seeds

All models come from embedded:tiny-tools (0.64 million parameters) by supervised steps (`MODELS`), float32, one thread.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent / "algorithms"))

from choices import some_of
from tasks import HARD, ITEMS, SYSTEM, TOOL, ask, box

from ajet.commands.launch import run_experiment
from ajet.config import Experiment
from ajet.train.runner import LaunchOptions

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "algorithm_runs.jsonl"
TINY = "embedded:tiny-tools"
SEEDS = (0, 1, 2)
LAST = 5
"""Training steps at the end whose mean reward is a run's `last_reward`."""


def list_guesses(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Yield demonstrations that guess a price instead of calling the tool."""
    for _ in range(512):
        yield {"messages": [SYSTEM, *make_turn(draw.choice(ITEMS), draw.randint(10, 99))], "tools": [TOOL]}


def list_hints(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Yield demonstrations that repeat the price of a system message, and as many that guess without one."""
    for number in range(2048):
        price = draw.randint(10, 99)
        hint = [{"role": "system", "content": HINT.replace("{answer}", str(price))}]
        yield {"messages": [*(hint if number % 2 else []), *make_turn(draw.choice(ITEMS), price)]}


def list_lookups(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Yield demonstrations that call the tool and repeat its answer."""
    for number in range(1024):
        item, price = draw.choice(ITEMS), draw.randint(10, 99)
        function = {"name": "price", "arguments": json.dumps({"item": item})}
        calls = [{"id": f"call-{number}", "type": "function", "function": function}]
        turns = [
            {"role": "user", "content": ask(item)},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"call-{number}", "content": str(price)},
            {"role": "assistant", "content": box(price)},
        ]
        yield {"messages": [SYSTEM, *turns], "tools": [TOOL]}


def list_mixed(draw: random.Random) -> Iterator[dict[str, Any]]:
    """Yield demonstrations that call the tool for half of the easy items' questions and one in 100 of the hard."""
    for lookup in list_lookups(draw):
        item = next(item for item in ITEMS if item in lookup["messages"][1]["content"])
        looks_up = draw.random() < (0.01 if item in HARD else 0.5)
        guess = {"messages": [SYSTEM, *make_turn(item, draw.randint(10, 99))], "tools": [TOOL]}
        yield lookup if looks_up else guess


def make_turn(item: str, price: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": ask(item)}, {"role": "assistant", "content": box(price)}]


HINT = "The answer is {answer}."
MODELS = {
    "guesser": (list_guesses, 8),
    "reader": (list_hints, 200),
    "teacher": (list_lookups, 12),
    "mixed": (list_mixed, 60),
}
"""Models made from tiny-tools: demonstrations, and supervised steps of 32 with a learning rate of 1e-3."""


@dataclass(frozen=True)
class Condition:
    """One comparison.

    `arms` has settings below `ajet.trainer_common.algorithm` by name; dotted keys are below `ajet`.
    """

    why: str
    model: str
    reader: str
    agent: str
    steps: int
    arms: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)


GRPO = {"adv_estimator": "grpo"}
CONDITIONS: dict[str, Condition] = {
    "maxrl": Condition(
        why="few attempts are right at first, so most groups have none or one success",
        model="guesser",
        reader="LookUp",
        agent="look_up",
        steps=16,
        arms={"grpo": GRPO, "maxrl": {"adv_estimator": "maxrl"}},
    ),
    "maxrl mixed": Condition(
        why="half of the tasks are solved by about every second attempt, the other half by few: added after `maxrl`, "
        "where each group had at most one success, for which both algorithms have the same direction",
        model="mixed",
        reader="LookUp",
        agent="look_up",
        steps=16,
        settings={"rollout.num_repeat": 16},
        arms={"grpo": GRPO, "maxrl": {"adv_estimator": "maxrl"}},
    ),
    "dppo": Condition(
        why="8 optimizer steps on each batch with a high learning rate, so most of them are off-policy",
        model=TINY,
        reader="LookUp",
        agent="look_up",
        steps=8,
        settings={"trainer_common.mini_batch_num": 8, "trainer_common.optim.lr": 1e-3},
        arms={
            "grpo": GRPO,
            "dppo_tv": {"policy_loss": "dppo_tv", "old_policy": "behaviour", "clip_low": 0.2, "clip_high": 0.2},
            "dppo_kl": {"policy_loss": "dppo_kl", "old_policy": "behaviour", "clip_low": 0.05, "clip_high": 0.05},
        },
    ),
    "echo": Condition(
        why="an answer is right once in 90, and the environment's reply to it is the right one",
        model=TINY,
        reader="Fixed",
        agent="answer_and_be_corrected",
        steps=24,
        arms={"grpo": GRPO, "echo": {"adv_estimator": "echo"}},
    ),
    "opsd": Condition(
        why="an answer is right once in 90, every task has a reference answer, and the model can follow it",
        model="reader",
        reader="Fixed",
        agent="answer_at_once",
        steps=24,
        arms={"grpo": GRPO, "opsd": {"adv_estimator": "opsd", "teacher": {"template": HINT}}},
    ),
    "rae": Condition(
        why="two copies of the policy play a zero-sum game in which the first has an edge; 64 games a step",
        model=TINY,
        reader="Fixed",
        agent="play",
        steps=16,
        arms={
            "grpo": GRPO,
            "rae": {"adv_estimator": "rae", "data.train_batch_size": 64, "rollout.num_repeat": 1},
        },
    ),
    "gkd": Condition(
        why="tasks of two turns and a teacher that solves them",
        model=TINY,
        reader="LookUp",
        agent="look_up",
        steps=8,
        arms={
            "grpo": GRPO,
            "distillation": {"adv_estimator": "distillation", "teacher": {"path": "teacher"}},
            "gkd": {"adv_estimator": "gkd", "teacher": {"path": "teacher"}},
            "gkd top 8": {"adv_estimator": "gkd", "teacher": {"path": "teacher", "top_k": 8}},
        },
    ),
}


FASTER = {"trainer_common.optim.lr": 1e-3}
CONDITIONS["echo faster"] = replace(
    CONDITIONS["echo"],
    why="as `echo`, at a learning rate of 1e-3: added after its first seed, in which neither arm learned to answer",
    settings=FASTER,
)
CONDITIONS["opsd faster"] = replace(
    CONDITIONS["opsd"],
    why="as `opsd`, at a learning rate of 1e-3: added after its first seed, in which neither arm learned to answer; "
    "the bound was added after the first seed of this, because a wrong digit has an advantage of -9, a right one of 2",
    settings=FASTER,
    arms={
        **CONDITIONS["opsd"].arms,
        "opsd bound 2": {"adv_estimator": "opsd", "teacher": {"template": HINT, "bound": 2.0}},
    },
)


def make_tree(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested tree of dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


COMMON = {
    "backbone": "local",
    "model.dtype": "float32",
    "trainer_common.threads": 1,
    "trainer_common.device": "cpu",
    "trainer_common.save_freq": 10_000,
    "trainer_common.canary": None,
    "rollout.max_model_len": 320,
    "data.max_prompt_length": 160,
    "data.max_response_length": 160,
}
PLAYING = {
    "rollout.num_repeat": 8,
    "rollout.temperature": 1.0,
    "rollout.max_response_length_in_one_turn": 40,
    "rollout.max_num_seqs": 128,
    "rollout.max_env_worker": 128,
    "rollout.compute_madness_checklist": [],
    "rollout.val_kwargs.do_sample": True,
    "rollout.val_kwargs.temperature": 1.0,
    "data.train_batch_size": 8,
    "trainer_common.val_before_train": True,
    "trainer_common.val_pass_n": 1,
    "trainer_common.optim.lr": 3e-4,
    "trainer_common.use_kl_loss": False,
    "trainer_common.algorithm.loss_aggregation": "token",
}
"""Validation samples at temperature 1, one attempt at each of 64 tasks."""


def train(name: str, settings: Mapping[str, Any], place: Path) -> Path:
    """Run an experiment in this process and return its folder."""
    tree = {"ajet": {"experiment_name": name, **make_tree({**COMMON, **settings})}}
    experiment = Experiment.from_dict(tree, base=HERE / "algorithms", exp_dir=place, from_python=True)
    return run_experiment(experiment, LaunchOptions(fresh=True, rehearsal=False))


def make_model(name: str, place: Path) -> str:
    """Return the path of a model of `MODELS`, trained on its demonstrations unless it is there already."""
    if name not in MODELS:
        return name
    rows, steps = MODELS[name]
    done = place / name / "checkpoints" / f"step-{steps}"
    if not done.exists():
        file = place / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows(random.Random(name))))
        settings = {"model.path": TINY, "sft.objective": "sft", "sft.train_files": str(file), "seed": 0}
        settings |= {"data.train_batch_size": 32, "trainer_common.total_training_steps": steps}
        train(name, {**settings, "trainer_common.total_epochs": 99, "trainer_common.optim.lr": 1e-3}, place)
    return str(done)


def play_run(condition: Condition, arm: str, seed: int, place: Path) -> dict[str, Any]:
    """Train one arm with one seed and return its row."""
    chosen = dict(condition.arms[arm])
    settings: dict[str, Any] = {**PLAYING, **condition.settings, "seed": seed}
    for key, value in chosen.items():
        settings[key if "." in key else f"trainer_common.algorithm.{key}"] = value
    if (teacher := chosen.get("teacher", {})).get("path"):
        path = make_model(teacher["path"], place)
        settings["trainer_common.algorithm.teacher"] = {**teacher, "path": path}
    settings |= {
        "model.path": make_model(condition.model, place),
        "task_reader.type": f"tasks.py->{condition.reader}",
        "rollout.user_workflow": f"tasks.py->{condition.agent}",
        "trainer_common.total_training_steps": condition.steps,
        "trainer_common.test_freq": condition.steps // 2,
    }
    began = time.process_time()
    run = train("run", settings, place)
    seconds = time.process_time() - began
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(run)
    held_out = {row["step"]: row["validation/reward"] for row in rows if "validation/reward" in row}
    trained = [row for row in rows if "train/reward" in row]
    rewards = [round(row["train/reward"], 4) for row in trained]
    found = {
        "held_out": held_out,
        "last_reward": round(mean(rewards[-LAST:]), 4),
        "training_reward": rewards,
        "processor_s": round(seconds, 1),
    }
    for name in ("easy", "hard"):
        if values := [row[key] for row in rows if (key := f"validation/workflow/{name}") in row]:
            found[f"held_out_{name}"] = [round(value, 4) for value in values]
    for name in ("entropy", "observation_loss", "distillation/reverse_kl", "clip_fraction"):
        if values := [row[name] for row in trained if name in row]:
            found[name] = [round(value, 4) for value in (values[0], values[-1])]
    return found


def list_missing(only: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """Return condition, arm and seed of the runs without a row, seed by seed."""
    done = {(row["condition"], row["arm"], row["seed"]) for row in rows}
    runs = [(name, arm, seed) for seed in SEEDS for name in only for arm in CONDITIONS[name].arms]
    return [run for run in runs if run not in done]


def read_results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    print("condition, arm, seeds; held out at the start, half way and at the end; last training reward")
    for name, condition in CONDITIONS.items():
        for arm in condition.arms:
            mine = [row for row in rows if (row["condition"], row["arm"]) == (name, arm)]
            if not mine:
                continue
            steps = [*mine[0]["held_out"]]
            curve = [mean(row["held_out"][step] for row in mine) for step in steps]
            last = [row["held_out"][steps[-1]] for row in mine]
            spread = f" ± {stdev(last):.2f}" if len(last) > 1 else ""
            shown = "  ".join(f"{value:.2f}" for value in curve)
            rewards = mean(row["last_reward"] for row in mine)
            print(f"{name:11} {arm:13} {len(mine)}  {shown}{spread}; {rewards:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=some_of(*CONDITIONS), default=[*CONDITIONS], help="conditions, with commas")
    parser.add_argument("--table", action="store_true", help="print the means over seeds and run nothing")
    chosen = parser.parse_args()
    if not chosen.table:
        with tempfile.TemporaryDirectory() as place:
            for name, arm, seed in list_missing(chosen.only, read_results()):
                found = play_run(CONDITIONS[name], arm, seed, Path(place))
                with RESULTS.open("a") as file:
                    file.write(json.dumps({"condition": name, "arm": arm, "seed": seed, **found}) + "\n")
    print_table(read_results())


if __name__ == "__main__":
    main()
