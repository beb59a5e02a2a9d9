"""Mistakes in settings and on the command line, 45 to 56 and 75 to 80."""

from __future__ import annotations

from pathlib import Path

import ajet
from tests.mistakes.mistake import Mistake
from tests.mistakes.project import AGENT, SCRIPT, YAML

DRY = "ajet --conf m.yaml --dry-run"
LOCAL = "ajet --conf m.yaml --backbone local"
TINY = Path(ajet.__file__).parent / "engine/embedded/tiny_tools"
OTHER_MODEL: dict[str, str | bytes] = {f"other/{each.name}": each.read_bytes() for each in TINY.iterdir()}
SHORT = "rollout.max_model_len=1000 data.max_prompt_length=500 data.max_response_length=500"

VERL = """\
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-7B-Instruct}
  actor: {optim: {lr: 1.0e-6}, ppo_mini_batch_size: 256}
  rollout: {name: vllm, n: 5}
algorithm: {adv_estimator: grpo}
data: {train_batch_size: 1024, max_prompt_length: 512, max_response_length: 1024}
trainer: {n_gpus_per_node: 8, nnodes: 1, total_epochs: 15}
"""


def yaml(old: str, new: str) -> dict[str, str | bytes]:
    """Return the files of a project whose YAML has `new` instead of `old`."""
    assert old in YAML
    return {"m.yaml": YAML.replace(old, new)}


def script(old: str, new: str) -> dict[str, str | bytes]:
    """Return the files of a project whose script has `new` instead of `old`."""
    assert old in SCRIPT
    return {"tune.py": SCRIPT.replace(old, new)}


def own_advantage(value: str) -> dict[str, str | bytes]:
    """Return the files of a project with an algorithm whose advantage is this expression."""
    source = f"""\
import torch

from ajet.algorithm import Algorithm


class Own(Algorithm):
    def of_group(self, returns_G):
        return {value}
"""
    return {
        "own.py": source,
        "m.yaml": YAML.replace(
            "total_training_steps: 2", "total_training_steps: 2, algorithm: {adv_estimator: own.py->Own}"
        ),
    }


MISTAKES = (
    Mistake(45, "num_repeat without its section", "the section", ("ajet --conf m.yaml --dry-run num_repeat=4",),
            shows=("rollout.num_repeat",)),
    Mistake(46, "rollout.num_repeat = 4 with blanks", "how to write it",
            ("ajet --conf m.yaml --dry-run rollout.num_repeat = 4",), shows=("write rollout.num_repeat=4",)),
    Mistake(47, "ajet train --conf", "it runs", ("ajet train --conf m.yaml",), code=0),
    Mistake(47, "--config instead of --conf", "how to write it", ("ajet --config m.yaml",), shows=("--conf",)),
    Mistake(47, "--rollout.num_repeat 4", "how to write it", ("ajet --conf m.yaml --rollout.num_repeat 4",),
            shows=("write rollout.num_repeat=4",)),
    Mistake(48, "judge_protocol: agent.py", "a name is missing", (DRY,), shows=("agent.py->",),
            files=yaml("agent.py->reward", "agent.py")),
    Mistake(48, "agent.py->Agent", "the nearest name", (DRY,), shows=("agent.py", "agent"),
            files=yaml("agent.py->agent", "agent.py->Agent")),
    Mistake(48, "agent.py -> reward, agent.agent", "what to write", (DRY,), shows=("agent->agent",),
            files={"m.yaml": YAML.replace("agent.py->reward", "agent.py -> reward").replace(
                "agent.py->agent", "agent.agent")}),
    Mistake(49, "a hosted model as model.path", "a hosted model cannot be trained here",
            (DRY,), shows=("gpt-4o-mini", "model.path"), files=yaml("embedded:tiny-tools", "gpt-4o-mini"),
            variables={"HF_HUB_OFFLINE": "1"}),
    Mistake(50, "a name of Ollama's as model.path", "what to write instead", (DRY,),
            shows=("llama3.2:1b", "Ollama", "Hugging Face"),
            files=yaml("embedded:tiny-tools", "llama3.2:1b"), variables={"HF_HUB_OFFLINE": "1"}),
    Mistake(51, "model.path is a run's folder", "the checkpoint below it",
            (LOCAL, "ajet --conf other.yaml --dry-run"), shows=("checkpoints/step-",),
            files={"other.yaml": YAML.replace("embedded:tiny-tools", "launcher_record/m")}),
    Mistake(52, 'lr: "1,0e-4"', "a number, at this line", (DRY,), shows=("m.yaml:9", "lr"),
            files=yaml("save_freq: 1", 'save_freq: 1, optim: {lr: "1,0e-4"}')),
    Mistake(52, "AJET: instead of ajet:", "the nearest name", (DRY,), shows=("m.yaml", "ajet:"),
            files=yaml("ajet:\n", "AJET:\n")),
    Mistake(53, "a cosine schedule without a length", "the dry run refuses it",
            ("ajet --conf m.yaml --backbone local --dry-run",), shows=("lr_schedule", "total_training_steps"),
            files=yaml("total_training_steps: 2, save_freq: 1", "save_freq: 1, optim: {lr_schedule: cosine}")),
    Mistake(54, 'settings={"rollout.n": 3} in ajet.tune', "one screen with the nearest key",
            ("python tune.py",), shows=("rollout.num_repeat",), hides=("Traceback",),
            files=script("settings=SMALL", 'settings={"rollout.n": 3}')),
    Mistake(55, "tasks is a DataFrame", "its rows are read", ("python tune.py",), code=0, shows=("Checkpoint",),
            files=script("tasks=TASKS", "tasks=__import__('pandas').DataFrame(TASKS)")),
    Mistake(56, "validation= in ajet.tune", "it is played before and after", ("python tune.py",), code=0,
            shows=("held out", "2 of 2 validation tasks", "too few for a conclusion"), hides=("6.35",),
            files=script("tasks=TASKS", "tasks=TASKS, validation=TASKS[:2]")),
    Mistake(75, "verl's YAML as it is", "what to add before it, and that verl's keys are known", (DRY,),
            shows=("ajet.model.path", "actor_rollout_ref"), files={"m.yaml": VERL}),
    Mistake(76, "verl's data section beside ajet's", "the section is named as not read",
            (f"ajet --conf m.yaml --backbone verl --dry-run {SHORT}",), code=0,
            shows=("data.train_batch_size", "ajet.data.train_batch_size"),
            files={"m.yaml": YAML + "data: {train_batch_size: 1024, max_prompt_length: 512}\n"}),
    Mistake(77, "verl's model path and n against ajet's", "both places, and the value that verl gets",
            (f"ajet --conf m.yaml --backbone verl --dry-run {SHORT}",), code=0,
            shows=("m.yaml:7) is 2, overridden by actor_rollout_ref.rollout.n (m.yaml:11)", "verl gets 4",
                   "m.yaml:2) is embedded:tiny-tools, overridden by actor_rollout_ref.model.path", "verl gets other"),
            files={**OTHER_MODEL, "m.yaml": YAML + "actor_rollout_ref: {rollout: {n: 4}, model: {path: other}}\n"}),
    Mistake(78, "blanks and umlauts in paths and names", "they work",
            ("ajet --conf 'mein Ordner/für m.yaml' --dry-run experiment_name=für-m",), code=0,
            shows=("What is 0 + 1?",),
            files={"mein Ordner/für m.yaml": YAML, "mein Ordner/agent.py": AGENT,
                   "mein Ordner/train.jsonl": '{"question": "What is 0 + 1?", "answer": "1"}\n' * 2}),
    Mistake(79, "an algorithm whose advantage is one number for all", "the shape that is wanted", (LOCAL,),
            shows=("own.py:7", "shape", "array of 4 numbers"), files=own_advantage("torch.tensor(1.0)")),
    Mistake(79, "an algorithm whose advantages are not numbers", "finite numbers are wanted", (LOCAL,),
            shows=("own.py", "finite"), files=own_advantage("torch.full((len(returns_G),), float('nan'))")),
    Mistake(80, "an environment with gymnasium's reset and step only", "the methods and attributes to add",
            ("ajet env check world.py->World",),
            shows=("world.py:2", "action_space, observation_space, close", "has reset, step"), hides=("status 500",),
            files={"world.py": "class World:\n    def reset(self, seed=None):\n        return '', {}\n\n"
                               "    def step(self, action):\n        return '', 0.0, True, False, {}\n"}),
)  # fmt: skip
