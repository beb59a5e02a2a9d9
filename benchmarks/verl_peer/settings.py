"""One setting, given to both sides: our YAML, and what `python -m verl.trainer.main_ppo` is to be told for the same.

Invariant: verl's side gets the config that ours hands to verl (lengths, sizes, engine, optimizer, CPU platform), but
for the places where ours puts its own classes: there it keeps verl's defaults.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OURS = (
    ("data", "custom_cls"),
    ("actor_rollout_ref", "rollout", "agent", "default_agent_loop"),
    ("actor_rollout_ref", "rollout", "agent", "agent_loop_config_path"),
    ("actor_rollout_ref", "rollout", "agent", "agent_loop_manager_class"),
    ("trainer", "checkpoint_callback_class"),
    ("trainer", "ajet_lr_schedule"),
    ("trainer", "v1", "trainer_mode"),
)
"""Where our classes stand in verl's config."""


@dataclass(frozen=True)
class Setting:
    """What is played."""

    model: str
    tasks: int
    """A step."""
    samples: int
    """To each task."""
    reply: int
    """Tokens of one, at most."""
    steps: int = 1

    def yaml(self, folder: Path) -> Path:
        """Our side's, written into `folder`."""
        rollout = {
            "user_workflow": f"{HERE / 'one_turn.py'}->OneTurn",
            "num_repeat": self.samples,
            "temperature": 1.0,
            "max_response_length_in_one_turn": self.reply,
            "max_model_len": 96 + self.reply,
            "max_num_seqs": 128,
            "max_env_worker": 128,
            "compute_madness_checklist": [],
        }
        trainer = {
            "total_training_steps": self.steps,
            "val_before_train": False,
            "test_freq": -1,
            "save_freq": -1,
            "use_kl_loss": False,
            "device": "cpu",
            "optim": {"lr": 1e-5},
        }
        tree = {
            "ajet": {
                "project_name": "bench",
                "experiment_name": "bench",
                "model": {"path": self.model},
                "task_reader": {"type": f"{HERE / 'one_turn.py'}->Questions"},
                "rollout": rollout,
                "data": {
                    "train_batch_size": self.tasks,
                    "max_prompt_length": 96,
                    "max_response_length": self.reply,
                    "shuffle": False,
                },
                "trainer_common": trainer,
            }
        }
        path = folder / "bench.yaml"
        path.write_text(json.dumps(tree, indent=2))  # JSON is YAML
        return path


def model_of_no_sense(folder: Path) -> str:
    """A model of tiny-tools' size with random weights, saved into `folder`: its replies run to the limit, so that the
    number of tokens is known."""
    import shutil

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shipped = HERE.parents[1] / "ajet" / "engine" / "embedded" / "tiny_tools"
    shutil.copytree(shipped, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(shipped)).save_pretrained(folder)
    return str(folder)


def experiment_of(yaml: Path) -> Any:
    """What our command makes of it."""
    sys.path.insert(0, str(HERE.parents[1]))
    from ajet.config.experiment import load_experiment

    return load_experiment(yaml, backbone="verl", exp_dir=yaml.parent / "launcher_record")


def configs(experiment: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """verl's whole config as ours composes it, and the same for verl's own loop, data set and reward."""
    from copy import deepcopy

    from ajet.engine.model_source import locate_model
    from ajet.engine.models import prepare_folder
    from ajet_ray.shipped_experiment import KEY, pack_experiment
    from ajet_verl.settings import build_settings

    folder = prepare_folder(locate_model(experiment.ajet.model.path, base=experiment.base))
    ours = build_settings(experiment, model_folder=folder)
    steps = experiment.ajet.trainer_common.total_training_steps
    ours["trainer"]["total_training_steps"] = steps
    ours["data"]["val_batch_size"] = 1
    theirs, defaults = deepcopy(ours), verl_defaults()
    ours["data"][KEY] = pack_experiment(experiment, run_id="bench")
    for path in OURS:
        node, default = theirs, defaults
        for name in path[:-1]:
            node, default = node[name], default[name]
        if path[-1] in default:
            node[path[-1]] = default[path[-1]]
        else:
            node.pop(path[-1], None)
    theirs["data"].update(train_files=str(_parquet(experiment.base)), val_files=str(_parquet(experiment.base)))
    theirs["reward"]["custom_reward_function"].update(path=str(HERE / "one_turn.py"), name="compute_score")
    theirs["reward"]["num_workers"] = 1  # it computes rewards there; ours needs none
    theirs["trainer"].update(resume_mode="disable", default_local_dir=str(experiment.base / "verl_checkpoints"))
    return ours, theirs


def verl_defaults() -> dict[str, Any]:
    """What verl's own command composes without an override, resolved."""
    from importlib.util import find_spec

    import hydra
    from omegaconf import OmegaConf

    place = find_spec("verl")
    assert place is not None and place.submodule_search_locations is not None
    folder = Path(place.submodule_search_locations[0]) / "trainer" / "config"
    with hydra.initialize_config_dir(str(folder), version_base="1.3"):
        composed = hydra.compose("ppo_trainer")
    tree: Any = OmegaConf.to_container(composed, resolve=True)
    return tree


def overrides(theirs: dict[str, Any]) -> list[str]:
    """The command line of main_ppo that comes to `theirs`."""
    found = []

    def walk(node: Any, default: Any, path: str) -> None:
        if isinstance(node, dict) and isinstance(default, dict):
            for name, value in node.items():
                walk(value, default.get(name, walk), f"{path}.{name}" if path else name)
        elif node != default:
            found.append(f"++{path}={_written(node)}")

    walk(theirs, verl_defaults(), "")
    return found


def _written(value: Any) -> str:
    """In Hydra's grammar."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{_written(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_written(each) for each in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"'{value}'" if isinstance(value, str) else repr(value)


def _parquet(folder: Path) -> Path:
    import pandas

    sys.path.insert(0, str(HERE))
    from one_turn import COUNT, verl_row

    path = folder / "questions.parquet"
    if not path.exists():
        pandas.DataFrame([verl_row(number) for number in range(COUNT)]).to_parquet(path)
    return path
