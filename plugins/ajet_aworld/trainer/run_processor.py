"""RunProcessor: AgentTrainer's four inputs as an experiment of ajet.

Invariants: `train` runs the same as `ajet --conf` on the same configuration, stored resolved in the run directory below
`run_path`; the user's configuration overrides the other inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ajet_aworld.trainer import agents, data, reward
from ajet_aworld.trainer.trainer_processor import TrainerProcessor

if TYPE_CHECKING:
    from ajet.config import Experiment

SECTION = "aworld"
"""The configuration's section for agent and reward."""


class RunProcessor(TrainerProcessor):
    """Trains on one of ajet's backbones."""

    backbone: ClassVar[str]
    with_ray: ClassVar[bool] = False
    """True if the run starts Ray."""
    sections: ClassVar[tuple[str, ...]] = ()
    """Further sections of the configuration, besides `ajet` and those of ajet's own backbones."""

    def __init__(self, run_path: str) -> None:
        super().__init__(run_path)
        self.base = Path.cwd()
        self.config: dict[str, Any] = {}
        self._tree: dict[str, Any] = {
            "ajet": {"experiment_name": "agent_trainer", "backbone": self.backbone},
            SECTION: {},
        }

    def check_agent(self, agent: Any) -> dict[str, Any]:
        """Return the agent's part of the configuration. Raises ValueError."""
        rollout, section = agents.describe_agent(agent, self.base)
        _merge_over(self._tree, {"ajet": {"rollout": rollout}, SECTION: section})
        return {**rollout, **section}

    def check_dataset(self, dataset: Any = None, test_dataset: Any = None) -> tuple[str | None, str | None]:
        """Write the rows as JSON Lines and return (training, test), None without data. Raises ValueError."""
        folder = Path(self.run_path)
        train = data.write_lines(dataset, folder / "train.jsonl", self.base)
        test = data.write_lines(test_dataset, folder / "test.jsonl", self.base)
        files = {name: {"file_path": str(path)} for name, path in (("training", train), ("validation", test)) if path}
        if files:
            reader = {"type": "jsonl_dataset_file", "jsonl_dataset_file": files}
            _merge_over(self._tree, {"ajet": {"task_reader": reader}})
        return (str(train) if train else None), (str(test) if test else None)

    def check_reward(self, reward_func: Any = None) -> str | None:
        """Return a reference to the function. Raises ValueError."""
        if reward_func is None:
            self.reward_func_based_on_config = True
            return None
        judge, section = reward.describe_reward(reward_func, self.base)
        _merge_over(self._tree, {"ajet": {"task_judge": judge}, SECTION: section})
        return section.get("reward") or judge["judge_protocol"]

    def check_config(self, config: Any = None) -> dict[str, Any]:
        """Return the merged configuration: the user's over the other inputs.

        Raises ValueError for an unusable value, ConfigError for a wrong key or value.
        """
        given = _read_tree(config, self.base)
        if not given.get("ajet"):  # ajet's keys may lie at the top, next to a backbone's sections
            backbone_sections = {*_SECTIONS, *self.sections}
            own = {key: value for key, value in given.items() if key not in backbone_sections}
            given = {"ajet": own, **{key: value for key, value in given.items() if key in backbone_sections}}
        merged: dict[str, Any] = {}
        _merge_over(merged, self._tree)
        _merge_over(merged, given)
        if not merged[SECTION]:
            del merged[SECTION]
        self.config = merged
        self.experiment()
        return merged

    def experiment(self) -> Experiment:
        """Compose the experiment of `train`. Raises ConfigError."""
        from ajet.config import Experiment

        return Experiment.from_dict(self.config, base=self.base, exp_dir=Path(self.run_path))

    def train(self) -> None:
        """Run the experiment in this process. Raises UserError for errors of the user."""
        from ajet.commands.launch import launch
        from ajet.train.runner import LaunchOptions

        launch(self.experiment(), LaunchOptions(flags=("ray",) if self.with_ray else ()))


class DebugProcessor(RunProcessor):
    """Plays a few tasks without training."""

    backbone = "debug"


class LocalProcessor(RunProcessor):
    """Trains in this process, on a CPU or one GPU."""

    backbone = "local"


class VerlProcessor(RunProcessor):
    """Trains on Ray with verl; the configuration may have verl's sections (`actor_rollout_ref`, `trainer`, …)."""

    backbone = "verl"
    with_ray = True


class TrinityProcessor(RunProcessor):
    """Trains on Ray with Trinity-RFT; the configuration may have a section `trinity`."""

    backbone = "trinity"
    with_ray = True


_SECTIONS = ("verl", "trinity", "actor_rollout_ref", "critic", "trainer", "algorithm", "hydra", "defaults", SECTION)


def _read_tree(config: Any, base: Path) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, (str, Path)):
        import yaml

        path = base / config
        if not path.is_file():
            raise ValueError(f"the training configuration {config} is not a file")
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except yaml.YAMLError as problem:
            raise ValueError(f"the training configuration {config} is not valid YAML: {problem}") from None
    elif hasattr(config, "model_dump"):
        config = config.model_dump()
    if not isinstance(config, Mapping):
        raise ValueError(f"the training configuration is a {type(config).__name__}; expected a mapping or a file")
    from omegaconf import DictConfig, OmegaConf

    return dict(OmegaConf.to_container(config)) if isinstance(config, DictConfig) else dict(config)  # type: ignore[arg-type]


def _merge_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Merge `above` into `below`, mapping by mapping."""
    for key, value in above.items():
        if isinstance(value, Mapping):
            if not isinstance(below.get(key), dict):
                below[key] = {}
            _merge_over(below[key], value)
        else:
            below[key] = value
