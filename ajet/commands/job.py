"""AgentJetJob: builds and starts a training run from Python, and reads its result.

Invariant: a job is a YAML under construction. `tune()` runs exactly the file that `dump_job_as_yaml` writes, as `ajet
--conf` would. The result is read from the run directory, so an earlier run gives the same result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.commands.job_arguments import KEYS, collect_reader_keys, collect_settings, list_paths, make_reference
from ajet.commands.script_errors import shorten_uncaught_errors
from ajet.schema.errors import UserError
from ajet.train.runner import LaunchOptions

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import Experiment
    from ajet.config.document import Document
    from ajet.config.view import View
    from ajet.workflow import Workflow


DEFAULTS: Mapping[str, Any] = {
    "experiment_name": "ajet_job",
    "backbone": "local",
    "model.path": "embedded:smollm2-135m",
}
"""Settings of a job without a base YAML."""


class AgentJetJob:
    """Build an experiment step by step: `AgentJetJob(model=…).set_workflow(…).set_data(…).tune()`.

    `base_yaml_config` is the YAML to start with, and other arguments override the YAML. Without a YAML a job is
    `local`, with the model `embedded:smollm2-135m`. Every other argument is one key (`ajet.commands.job_arguments`).
    None leaves the key unchanged, and each value can be read again: `job.batch_size`. `n_gpu` is GPUs per node (0:
    CPU). `algorithm` is `trainer_common.algorithm.adv_estimator`, or a class of your own. `n_gpu_for_infer` is the
    number of inference engines if the backbone separates them. `name` is `experiment_name`. `ensure_new_experiment`
    appends the time to the name. Set any other key with `set(key=…)`. Raises ConfigError for an unusable YAML.
    """

    @shorten_uncaught_errors
    def __init__(
        self,
        backbone: str | None = None,
        model: str | None = None,
        n_gpu: int | None = None,
        algorithm: type[Algorithm] | str | None = None,
        n_gpu_for_infer: int | None = None,
        *,
        name: str | None = None,
        base_yaml_config: str | Path | None = None,
        ensure_new_experiment: bool = False,
        experiment_name: str | None = None,
        experiment_dir: str | None = None,
        project_name: str | None = None,
        logging: str | list[str] | None = None,
        num_repeat: int | None = None,
        batch_size: int | None = None,
        max_env_worker: int | None = None,
        max_prompt_length: int | None = None,
        max_response_length: int | None = None,
        max_response_length_in_one_turn: int | None = None,
        max_model_len: int | None = None,
        mini_batch_num: int | None = None,
        lora_rank: int | None = None,
        lora_alpha: int | None = None,
        lora_target_modules: str | list[str] | None = None,
        lora_load_format: str | None = None,
        layered_summon: bool | None = None,
        gpu_memory_utilization: float | None = None,
        lr: float | None = None,
        ppo_epochs: int | None = None,
        compute_madness_checklist: list[str] | None = None,
        swarm_mode: bool | None = None,
        swarm_mode_sample_collection_method: str | None = None,
    ) -> None:
        settings = collect_settings(locals())
        if algorithm is not None:
            settings[KEYS["algorithm"]] = make_reference(algorithm)
        self._base = Path.cwd()
        self._base_document: Document | None = None
        self._other_sections: dict[str, Any] = {}
        self._tree: dict[str, Any] = {}
        if base_yaml_config is None:
            settings = {**DEFAULTS, **settings}
        else:
            self._load_yaml(Path(base_yaml_config))
        self._set_keys(settings)
        if ensure_new_experiment:
            self._set_keys({"experiment_name": f"{self.experiment_name}_{time.strftime('%Y%m%d-%H%M%S')}"})

    def _load_yaml(self, path: Path) -> None:
        """Take over the content of a YAML, whose relative paths start from its folder."""
        from ajet.config import load_experiment
        from ajet.config.document import read_document

        experiment = load_experiment(path)  # checks the file
        self._base_document = read_document(experiment.yaml_path)
        self._other_sections = deepcopy(self._base_document.tree)
        self._tree = self._other_sections.pop("ajet", None) or {}
        self._tree |= {"experiment_name": experiment.name, "base_dir": str(experiment.base)}

    def __getattr__(self, name: str) -> Any:
        """Return the present value of a setting by the name of its argument, such as `job.batch_size`.

        Raises:
            ConfigError: The settings cannot be composed.
        """
        if name not in KEYS:
            raise AttributeError(
                f"a job has no attribute {name!r}; `job.config.ajet` has every key of the configuration"
            )
        value: Any = self.config.ajet
        for part in KEYS[name].split("."):
            value = getattr(value, part)
        return value

    @property
    def config(self) -> View:
        """The present settings with all defaults, read-only: `job.config.ajet.rollout.num_repeat`.

        Raises ConfigError if the settings cannot be composed.
        """
        return self.experiment().config

    @shorten_uncaught_errors
    def set_workflow(
        self, workflow: type[Workflow] | Callable[[Any, Any], Any] | str, ensure_reward_in_workflow: bool = False
    ) -> AgentJetJob:
        """Set the agent: a Workflow class, a function `(task, tuner)`, or a reference to either.

        Args:
            ensure_reward_in_workflow: True to use no judge, even if a judge was set.
        """
        if ensure_reward_in_workflow:
            self._set_keys({"task_judge.judge_protocol": None})
        return self._set_keys({"rollout.user_workflow": make_reference(workflow)})

    @shorten_uncaught_errors
    def set_judge(self, judge: type[Any] | Callable[[Any, Any], Any] | str) -> AgentJetJob:
        """Set the judge: a BaseJudge, a function `(task, output)`, or a reference to either."""
        return self._set_keys({"task_judge.judge_protocol": make_reference(judge)})

    @shorten_uncaught_errors
    def set_data(
        self,
        type: str,
        dataset_path: str = "",
        training_split: str | None = None,
        validation_split: str | None = None,
    ) -> AgentJetJob:
        """Set the tasks of the job, and return the job.

        Args:
            type: Name of a reader. "hf", "huggingface", "jsonl" and "dummy" are short names.
            dataset_path: The reader's source: a data set of the hub, a file, a folder, traces, a service's address.
            training_split: The training split, or the file of it. None: the reader's default.
            validation_split: The held-out split, or the file of it. Without it, a reader of files has no validation.

        Raises:
            UserError: The reader has no key for an argument.
        """
        values = collect_reader_keys(type, dataset_path, training_split, validation_split)
        for key in [key for key, value in values.items() if value is None]:
            self._remove_key(f"task_reader.{key}")
        return self._set_keys({f"task_reader.{key}": value for key, value in values.items() if value is not None})

    @shorten_uncaught_errors
    def set(self, **values: Any) -> AgentJetJob:
        """Set any key below `ajet`, with double underscores for dots: `set(rollout__num_repeat=8)`."""
        return self._set_keys({path.replace("__", "."): value for path, value in values.items()})

    def _set_keys(self, values: Mapping[str, Any]) -> AgentJetJob:
        """Set keys below `ajet` by their dotted names, create missing sections, and return the job.

        Raises:
            UserError: A key lies below a value that is no section.
        """
        for path, value in values.items():
            section = self._tree
            *parents, leaf = path.split(".")
            for part in parents:
                if section.get(part) is None:
                    section[part] = {}
                section = section[part]
                if not isinstance(section, dict):
                    raise UserError(
                        f"{path} cannot be set, because {part} is {section!r} there, not a section.",
                        where=f"ajet.{path}",
                    )
            section[leaf] = value
        return self

    def _remove_key(self, path: str) -> None:
        """Remove a key below `ajet`, by its dotted name, if it is set."""
        section: Any = self._tree
        *parents, leaf = path.split(".")
        for part in parents:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(leaf, None)

    @shorten_uncaught_errors
    def set_section(self, name: str, /, **values: Any) -> AgentJetJob:
        """Set a section other than `ajet`: a backbone's (`verl`, `trinity`), or your own, read as `tuner.config.NAME`.

        Raises:
            UserError: The section is `ajet`, whose keys `set` sets.
        """
        if name == "ajet":
            raise UserError(
                "`ajet` cannot be used as the name of your own section.",
                do="set its keys with `set(rollout__num_repeat=8)`",
            )
        self._other_sections[name] = {**(self._other_sections.get(name) or {}), **values}
        return self

    @shorten_uncaught_errors
    def dump_job_as_yaml(self, path: str | Path) -> Path:
        """Write the job as a YAML for `ajet --conf`, with its folder, and return the path.

        Raises:
            ConfigError: `tune()` would refuse the job.
        """
        from ajet.config.document import dump_yaml

        self.experiment()
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_yaml({"ajet": self._tree, **self._other_sections}))
        return path

    @shorten_uncaught_errors
    def tune(
        self,
        *,
        backbone: str | None = None,
        fresh: bool = False,
        resume: str | None = None,
        rehearsal: bool = True,
        debug: str = "",
        services: Sequence[str] = (),
        prefix: str = "",
        with_ray: bool = False,
        with_ray_cluster: bool = False,
        with_logview: bool = False,
        skip_check_avail_gpu: bool = False,
    ) -> Path:
        """Run the job in this process and return the run directory. The arguments are the flags of `ajet --conf`.

        Args:
            backbone: Backbone of this run only. None: the job's.
            rehearsal: False to start without a trial update.
            debug: Tags of the breakpoints `bp("TAG")` at which the run stops, separated by |.
            services: Names of services of `ajet.services` to start.
            prefix: Prefix for the names of the services' log files.

        Raises:
            UserError: The user can correct the cause.
        """
        flags = {"ray": with_ray, "ray-cluster": with_ray_cluster, "logview": with_logview}
        options = LaunchOptions(
            fresh=fresh,
            resume=resume,
            flags=tuple(name for name, is_set in flags.items() if is_set),
            debug_tags=debug,
            services=tuple(services),
            prefix=prefix,
            skip_check_avail_gpu=skip_check_avail_gpu,
            rehearsal=rehearsal,
        )
        return self._launch_run(options, backbone=backbone or self.backbone)

    @shorten_uncaught_errors
    def debug(self, tags: str = "", *, services: Sequence[str] = ()) -> Path:
        """Play a few tasks without training, as `ajet --backbone debug`, and return the record's folder.

        Raises:
            UserError: The user can correct the cause, or every episode failed.
        """
        return self.tune(backbone="debug", debug=tags, services=services)

    @shorten_uncaught_errors
    def plan(self, *, backbone: str | None = None, services: Sequence[str] = ()) -> None:
        """Check everything and print the plan of a run, as `--dry-run` does.

        Raises UserError if a run would be refused.
        """
        from ajet.commands.plan import show_plan
        from ajet.record.console import print_line

        outcome_text = show_plan(self._compose_experiment(backbone=backbone or self.backbone), services)
        print_line(f"{outcome_text}.")

    @shorten_uncaught_errors
    def sft(
        self,
        data: str | Path | Sequence[str | Path] | None = None,
        *,
        from_run: str | Path | None = None,
        objective: str = "sft",
        validation: str | Path | Sequence[str | Path] | None = None,
        name: str | None = None,
        fresh: bool = False,
        resume: str | None = None,
    ) -> Tuned:
        """Train on given replies, as `ajet sft` does. The job itself is not changed.

        Args:
            data: JSON Lines files.
            from_run: A recorded run, whose best episodes are learned.
            objective: "sft", or "dpo" for pairs with a chosen and a rejected reply.
            validation: JSON Lines files of held-out rows.
            name: Name of this run. None: `NAME_sft`.

        Returns:
            The result. `model=` of another job takes the result's `checkpoint`.

        Raises:
            UserError: The user can correct the cause.
        """
        settings = {
            "sft.objective": objective,
            "sft.train_files": list_paths(data),
            "sft.val_files": list_paths(validation),
            "sft.from_run": None if from_run is None else str(from_run),
        }
        values = {key: value for key, value in settings.items() if value is not None}
        values["experiment_name"] = name or f"{self.experiment_name}_sft"
        if "trains" not in self.experiment().backbone.can:
            values["backbone"] = "local"
        return Tuned.of(self._launch_run(LaunchOptions(fresh=fresh, resume=resume), **values))

    @shorten_uncaught_errors
    def experiment(self) -> Experiment:
        """Return the experiment that `tune()` would run. Raises ConfigError if the settings cannot be composed."""
        from ajet.config import Experiment

        tree = {"ajet": self._tree, **self._other_sections}
        return Experiment.from_dict(tree, base=self._base, from_python=True, base_document=self._base_document)

    def _compose_experiment(self, **values: Any) -> Experiment:
        """Return the experiment with other values for one run, given by dotted key. The job itself is not changed."""
        tree, self._tree = self._tree, deepcopy(self._tree)
        try:
            return self._set_keys(values).experiment()
        finally:
            self._tree = tree

    def _launch_run(self, options: LaunchOptions, **values: Any) -> Path:
        """Run the experiment with other values, given by dotted key, and return the run directory."""
        from ajet.commands.launch import run_experiment
        from ajet.record.logs import show_logs_in_program

        experiment = self._compose_experiment(**values)
        with show_logs_in_program():
            return run_experiment(experiment, options)


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a training run: its folder, its model, and the rewards by step."""

    path: Path
    checkpoint: Path | None
    """Folder of the best measured model, else the last, for `model=` and transformers. None if no model was saved."""
    rewards: list[float]
    """Mean reward of each training step with a reward, in order, including steps before a resume."""

    @classmethod
    def of(cls, folder: Path) -> Tuned:
        """Return the result of the run in `folder`, read from its record.

        Raises UserError if the model cannot be exported.
        """
        from ajet.commands.export import find_model_folder
        from ajet.record.checkpoints import checkpoints_of
        from ajet.record.files import read_rows

        checkpoints = checkpoints_of(folder)
        checkpoint = checkpoints.best() or checkpoints.latest()
        rewards = [row["train/reward"] for row in read_rows(folder / "metrics.jsonl") if "train/reward" in row]
        return cls(
            folder,
            find_model_folder(folder, checkpoint) if checkpoint else None,
            [reward for reward in rewards if reward is not None],
        )
