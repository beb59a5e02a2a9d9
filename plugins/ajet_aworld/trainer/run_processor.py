"""RunProcessor: AgentTrainer's four inputs as an experiment of ajet.

Invariants: `train` runs the same as `ajet --conf` on the same configuration, stored resolved in the run directory below
`run_path`; the user's configuration overrides the other inputs.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ajet.config.references import resolve_reference
from ajet.record.files import write_atomically
from ajet.schema.errors import JudgeFailure, UserError
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge
from ajet_aworld.trainer import agents
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
        """Start a configuration with the backbone only; the checks add the other inputs to it."""
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
        """Write the data sets as JSON Lines into the output folder.

        Returns:
            The paths (training, validation), each None without data.

        Raises:
            ValueError: a data set cannot be read.
        """
        folder = Path(self.run_path)
        train_file = write_lines(dataset, folder / "train.jsonl", self.base)
        test_file = write_lines(test_dataset, folder / "test.jsonl", self.base)
        files = {
            name: {"file_path": str(path)}
            for name, path in (("training", train_file), ("validation", test_file))
            if path
        }
        if files:
            reader = {"type": "jsonl_dataset_file", "jsonl_dataset_file": files}
            _merge_over(self._tree, {"ajet": {"task_reader": reader}})
        return (str(train_file) if train_file else None), (str(test_file) if test_file else None)

    def check_reward(self, reward_func: Any = None) -> str | None:
        """Return a reference to the reward function, or None if the configuration has the judge. Raises ValueError."""
        if reward_func is None:
            self.reward_func_based_on_config = True
            return None
        judge, section = describe_reward(reward_func, self.base)
        _merge_over(self._tree, {"ajet": {"task_judge": judge}, SECTION: section})
        return section.get("reward") or judge["judge_protocol"]

    def check_config(self, config: Any = None) -> dict[str, Any]:
        """Return the merged configuration: the user's over the other inputs.

        Raises ValueError for an unusable value, ConfigError for a wrong key or value.
        """
        user_tree = _read_tree(config, self.base)
        if not user_tree.get("ajet"):  # ajet's keys may lie at the top, next to a backbone's sections
            backbone_sections = {*_SECTIONS, *self.sections}
            ajet_keys = {key: value for key, value in user_tree.items() if key not in backbone_sections}
            user_tree = {
                "ajet": ajet_keys,
                **{key: value for key, value in user_tree.items() if key in backbone_sections},
            }
        merged: dict[str, Any] = {}
        _merge_over(merged, self._tree)
        _merge_over(merged, user_tree)
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
    """Return a configuration, given as mapping, model or YAML file, as a dictionary. Raises ValueError for anything
    else."""
    if config is None:
        return {}
    if isinstance(config, (str, Path)):
        import yaml

        path = base / config
        if not path.is_file():
            raise ValueError(f"the training configuration {config} is not a file")
        try:
            config = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except yaml.YAMLError as error:
            raise ValueError(f"the training configuration {config} is not valid YAML: {error}") from None
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


# AgentTrainer's data sets as JSON Lines, readable by every backbone.
# Invariants: every row arrives with all columns; a row in verl's form (`reward_model.ground_truth`) also gets its
# truth as `answer`. A file is named by its content, so trainers with one `run_path` do not overwrite each other's.
_KINDS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_DIGEST = 6
"""Bytes of the content's digest."""


def write_lines(value: Any, file: Path, base: Path) -> Path | None:
    """Write a data set and return its file, with a digest added to `file`'s name; None without data. Raises ValueError.

    `value`: a data set, rows, or a path relative to `base`.
    """
    if value is None:
        return None
    rows = _read_file(base / value) if isinstance(value, (str, Path)) else value
    if not isinstance(rows, Iterable) or isinstance(rows, Mapping):
        raise ValueError(f"the data set is a {type(value).__name__}; expected a datasets.Dataset, rows, or a path")
    lines = [_format_row(row, number) for number, row in enumerate(rows)]
    if not lines:
        raise ValueError("the data set has no rows")
    text = "".join(lines)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).hexdigest()
    file = file.with_name(f"{file.stem}-{digest}{file.suffix}")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)
    return file


def _read_file(path: Path) -> Any:
    """Read a data set of a file by its suffix. Raises ValueError for a missing file or an unknown suffix."""
    file_format = _KINDS.get(path.suffix)
    if file_format is None:
        raise ValueError(f"{path} is not a data set; expected {', '.join(_KINDS)}")
    if not path.is_file():
        raise ValueError(f"the data set {path} does not exist")
    from datasets import Dataset

    return getattr(Dataset, f"from_{file_format}")(str(path), keep_in_memory=True)


def _format_row(row: Any, number: int) -> str:
    """Return a row as a JSON line. A row in verl's form gets its ground truth as `answer`. Raises ValueError."""
    if not isinstance(row, Mapping):
        raise ValueError(f"row {number} of the data set is a {type(row).__name__}; expected named columns")
    row = dict(row)
    reward_model = row.get("reward_model")
    if "answer" not in row and isinstance(reward_model, Mapping) and "ground_truth" in reward_model:
        row["answer"] = reward_model["ground_truth"]
    try:
        return json.dumps(row, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"row {number} of the data set cannot be written as JSON: {error}") from None


# AgentTrainer's reward as a judge: a function with verl's four arguments, or ajet's two.
# Invariant: a function with another signature, or annotated with another result than a number, is a ValueError
# before anything is played; another result at run time is the judge's failure.
ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_NUMBERS = ("float", "int", "bool", "Real", "Optional[float]", "float | None")


def describe_reward(value: Any, base: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Describe a reward function as a judge.

    Returns:
        (the section `ajet.task_judge`, the section `aworld`).

    Raises:
        ValueError: the function cannot be imported by name, or has another signature or result.
    """
    reference = _build_reference(value, base)
    try:
        function = resolve_reference(reference, base=base, key="reward_func")
    except UserError as error:
        raise ValueError(str(error)) from error
    if not callable(function):
        raise ValueError(f"Reward func must be callable or file path: {reference} is a {type(function).__name__}")
    # A judge class, or a function (task, output), is ajet's own form.
    if isinstance(function, type) or _accepts_count(function, 2, exactly=True):
        return {"judge_protocol": reference}, {}
    if not _accepts_count(function, 4):
        raise ValueError(
            f"the signature of the reward function {reference} is {inspect.signature(function)}; expected "
            f"({', '.join(ARGUMENTS)}), or (task, output)"
        )
    annotation = function.__annotations__.get("return", inspect.Signature.empty)
    return_type = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    if annotation is not inspect.Signature.empty and return_type not in _NUMBERS:
        raise ValueError(f"the reward function {reference} is annotated to return {return_type}; expected a number")
    return {"judge_protocol": f"{__name__}->FunctionJudge"}, {"reward": reference}


class FunctionJudge(BaseJudge):
    """Calls the function named in the configuration."""

    def __init__(self, config: Any) -> None:
        """Load the function. Raises UserError if it cannot be imported."""
        super().__init__(config)
        self._function = resolve_reference(
            config.aworld.reward, base=Path(config.ajet.base_dir), key="the reward function"
        )

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> float:
        """Return the function's score of the answer."""
        row = workflow_task.task.metadata
        answer = workflow_output.metadata.get("final_answer")
        text = answer if isinstance(answer, str) else "" if answer is None else str(answer)
        reward = self._function(row.get("data_source", ""), text, row.get("answer"), row.get("extra_info") or {})
        if not isinstance(reward, Real):
            raise JudgeFailure(f"the reward function returned a {type(reward).__name__}; expected a number")
        return float(reward)


def _build_reference(value: Any, base: Path) -> str:
    """Return a reference FILE->NAME to a function, given as function, file or reference. Raises ValueError."""
    if isinstance(value, (str, Path)):
        text = str(value)
        return text if "->" in text else f"{text}->{_find_function(base / text)}"
    if not callable(value):
        raise ValueError("Reward func must be callable or file path")
    name, module = getattr(value, "__qualname__", repr(value)), getattr(value, "__module__", None)
    if not name.isidentifier():
        raise ValueError(f"the reward function {name} cannot be imported by a name; define it with `def` in a file")
    if module == "__main__":
        return f"__main__->{name}"
    return f"{Path(inspect.getfile(value)).resolve()}->{name}"


def _find_function(file: Path) -> str:
    """Return the name of the function with the file's name, or of the only one with verl's arguments. Raises
    ValueError."""
    if not file.is_file():
        raise ValueError(f"the reward function's file {file} does not exist")
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as error:
        raise ValueError(f"the reward function's file {file} is not valid Python: {error}") from None
    functions = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    names = [function.name for function in functions]
    if file.stem in names:
        return file.stem
    matching_names = [
        function.name for function in functions if tuple(arg.arg for arg in function.args.args) == ARGUMENTS
    ]
    if len(matching_names) != 1:
        raise ValueError(
            f"{file} has {len(matching_names)} functions of ({', '.join(ARGUMENTS)}); choose one by its name: "
            f"{file}->NAME"
        )
    return matching_names[0]


def _accepts_count(function: Any, count: int, *, exactly: bool = False) -> bool:
    """True if a function can be called with `count` positional arguments. `exactly` also refuses optional ones."""
    signature = inspect.signature(function)
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return not exactly or len(signature.parameters) == count
