"""AgentJetJob: the same launch from Python.

Invariant: a job is a YAML under construction; `tune()` runs exactly what `ajet --conf` would run on the file that
`dump_job_as_yaml` writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from ajet.commands.job_arguments import KEYS, settings
from ajet.commands.own_reference import reference_of
from ajet.commands.script_errors import brief_if_uncaught
from ajet.commands.tuned import Tuned
from ajet.config.plugins import find_all_parts, find_part
from ajet.schema.errors import UserError
from ajet.train.options import LaunchOptions

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
"""What a job is that begins with no YAML, where nobody says otherwise."""


class AgentJetJob:
    """Build an experiment step by step: `AgentJetJob(model=…).set_workflow(…).set_data(…).tune()`.

    `base_yaml_config` is a YAML to begin with, and what is given beside it wins; without one a job is `local`, with the
    model `embedded:smollm2-135m`. Each other name is one key (`ajet.commands.job_arguments`), None leaves it as it is,
    and it can be read again: `job.batch_size`. `n_gpu` is GPUs per node (0: CPU); `algorithm` is
    `trainer_common.algorithm.adv_estimator`, or a class of your own; `n_gpu_for_infer` is the number of inference
    engines where the backbone separates them; `name` is `experiment_name`; `ensure_new_experiment` puts the time behind
    it. Any other key goes through `set(key=…)`. Raises ConfigError for a YAML that cannot be used.
    """

    @brief_if_uncaught
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
        given = settings(locals())  # the arguments by their names
        if algorithm is not None:
            given[KEYS["algorithm"]] = reference_of(algorithm)
        self._base = Path.cwd()
        self._under: Document | None = None
        self._own: dict[str, Any] = {}
        self._tree: dict[str, Any] = {}
        if base_yaml_config is None:
            given = {**DEFAULTS, **given}
        else:
            self._begin_with(Path(base_yaml_config))
        self._set(given)
        if ensure_new_experiment:
            self._set({"experiment_name": f"{self.experiment_name}_{time.strftime('%Y%m%d-%H%M%S')}"})

    def _begin_with(self, path: Path) -> None:
        """Take a YAML's content; what it names relative to itself is found from here, too."""
        from ajet.config import load_experiment
        from ajet.config.document import read_document

        found = load_experiment(path)  # which says what is wrong with it, and where
        self._under = read_document(found.yaml_path)
        self._own = deepcopy(self._under.tree)
        self._tree = self._own.pop("ajet", None) or {}
        self._tree |= {"experiment_name": found.name, "base_dir": str(found.base)}

    def __getattr__(self, name: str) -> Any:
        """A setting by the name that the job takes it by, as it is by now. Raises ConfigError."""
        if name not in KEYS:
            raise AttributeError(f"a job has no {name!r}; `job.config.ajet` has every key")
        value: Any = self.config.ajet
        for part in KEYS[name].split("."):
            value = getattr(value, part)
        return value

    @property
    def config(self) -> View:
        """What it is by now, defaults included, with attribute access (`job.config.ajet.rollout.num_repeat`). It is to
        be read: `set` changes it. Raises ConfigError."""
        return self.experiment().config

    @brief_if_uncaught
    def set_workflow(
        self, workflow: type[Workflow] | Callable[[Any, Any], Any] | str, ensure_reward_in_workflow: bool = False
    ) -> AgentJetJob:
        """A Workflow class, a function `(task, tuner)`, or a reference to one. `ensure_reward_in_workflow`: no judge is
        asked, also where one was set."""
        if ensure_reward_in_workflow:
            self._set({"task_judge.judge_protocol": None})
        return self._set({"rollout.user_workflow": reference_of(workflow)})

    @brief_if_uncaught
    def set_judge(self, judge: type[Any] | Callable[[Any, Any], Any] | str) -> AgentJetJob:
        """A BaseJudge, a function `(task, output)`, or a reference to one."""
        return self._set({"task_judge.judge_protocol": reference_of(judge)})

    @brief_if_uncaught
    def set_data(
        self,
        type: str,
        dataset_path: str = "",
        training_split: str | None = None,
        validation_split: str | None = None,
    ) -> AgentJetJob:
        """Tasks: `type` is a reader's name ("hf" or "huggingface", "jsonl" and "dummy" for short), `dataset_path` what
        that reader reads: a data set of the hub, a file, a folder, traces, a service's address. Where each split is a
        file, `validation_split` is the held-out one, and without it nothing is validated. Raises UserError for what
        this reader has no place for."""
        told = reader_keys(type, dataset_path, training_split, validation_split)
        for key in [key for key, value in told.items() if value is None]:
            self._forget(f"task_reader.{key}")
        return self._set({f"task_reader.{key}": value for key, value in told.items() if value is not None})

    @brief_if_uncaught
    def set(self, **values: Any) -> AgentJetJob:
        """Any other `ajet.*` key, dots as double underscores: `set(rollout__num_repeat=8)`."""
        return self._set({path.replace("__", "."): value for path, value in values.items()})

    def _set(self, values: Mapping[str, Any]) -> AgentJetJob:
        for path, value in values.items():
            node = self._tree
            *parents, leaf = path.split(".")
            for part in parents:
                if node.get(part) is None:
                    node[part] = {}
                node = node[part]
                if not isinstance(node, dict):
                    raise UserError(f"{path} can't be set: {part} is {node!r} there.", where=f"ajet.{path}")
            node[leaf] = value
        return self

    def _forget(self, path: str) -> None:
        node: Any = self._tree
        *parents, leaf = path.split(".")
        for part in parents:
            node = node.get(part) if isinstance(node, dict) else None
        if isinstance(node, dict):
            node.pop(leaf, None)

    @brief_if_uncaught
    def set_section(self, name: str, /, **values: Any) -> AgentJetJob:
        """A section of your own beside `ajet`, which a workflow reads as `tuner.config.NAME`, or one of a backbone
        (`verl`, `trinity`). Raises UserError for `ajet`, whose keys `set` sets."""
        if name == "ajet":
            raise UserError("`ajet` is no section of your own.", do="set its keys with `set(rollout__num_repeat=8)`")
        self._own[name] = {**(self._own.get(name) or {}), **values}
        return self

    @brief_if_uncaught
    def dump_job_as_yaml(self, path: str | Path) -> Path:
        """Write the YAML that `ajet --conf` runs; its folder is made where there is none. Raises ConfigError for what
        `tune()` would refuse."""
        from ajet.config.document import dump_yaml

        self.experiment()
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_yaml({"ajet": self._tree, **self._own}))
        return path

    @brief_if_uncaught
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
        """Run it in this process; answers the run directory. The arguments are the flags of `ajet --conf`: `backbone`
        for this run only, `rehearsal=False` is `--no-rehearsal`, `debug` are the tags of `bp("TAG")`, `services` the
        names of `--with-NAME`. Raises UserError for what the person can mend."""
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
        return _launched(self._with(backbone=backbone or self.backbone), options)

    @brief_if_uncaught
    def debug(self, tags: str = "", *, services: Sequence[str] = ()) -> Path:
        """Play a few tasks as training would and train nothing, as `ajet --backbone debug` does; answers the folder of
        what was played. Raises UserError, also where no episode came to its end."""
        return self.tune(backbone="debug", debug=tags, services=services)

    @brief_if_uncaught
    def plan(self, *, backbone: str | None = None, services: Sequence[str] = ()) -> None:
        """Check everything and print the plan, as `--dry-run` does; nothing is begun. Raises UserError."""
        from ajet.commands.plan import show_plan
        from ajet.record.console import console

        said = show_plan(self._with(backbone=backbone or self.backbone), services)
        console.print(f"{said}.", markup=False, soft_wrap=True)

    @brief_if_uncaught
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
        """Learn from given replies, as `ajet sft` does: rows of JSON Lines files, or the best episodes of a recorded
        run; `objective="dpo"`: of pairs, the chosen one. Answers what came of it: `model=` of another job is its
        `checkpoint`. `name`: of this run (None: `NAME_sft`); the job itself stays as it is. Raises UserError."""
        given = {
            "sft.objective": objective,
            "sft.train_files": _files(data),
            "sft.val_files": _files(validation),
            "sft.from_run": None if from_run is None else str(from_run),
        }
        told = {key: value for key, value in given.items() if value is not None}
        told["experiment_name"] = name or f"{self.experiment_name}_sft"
        if "trains" not in self.experiment().backbone.can:
            told["backbone"] = "local"
        return Tuned.of(_launched(self._with(**told), LaunchOptions(fresh=fresh, resume=resume)))

    @brief_if_uncaught
    def experiment(self) -> Experiment:
        """The composed experiment that `tune()` runs. Raises ConfigError."""
        from ajet.config import Experiment

        tree = {"ajet": self._tree, **self._own}
        return Experiment.from_dict(tree, base=self._base, in_python=True, under=self._under)

    def _with(self, **values: Any) -> Experiment:
        """The experiment with other values for one run. Raises ConfigError."""
        tree, self._tree = self._tree, deepcopy(self._tree)
        try:
            return self._set(values).experiment()
        finally:
            self._tree = tree


def _launched(experiment: Experiment, options: LaunchOptions) -> Path:
    from ajet.commands.launch import launched
    from ajet.record.log_sinks import shown_in_a_program

    with shown_in_a_program():
        return launched(experiment, options)


def _files(given: str | Path | Sequence[str | Path] | None) -> list[str] | None:
    if given is None:
        return None
    return [str(each) for each in ([given] if isinstance(given, (str, Path)) else given)]


SHORT = {
    "hf": "huggingface_dat_repo",
    "huggingface": "huggingface_dat_repo",
    "jsonl": "jsonl_dataset_file",
    "dataset_file": "jsonl_dataset_file",
    "dummy": "random_dummy",
}
UNSAID = ("train", "test")
_FILES = (".jsonl", ".json", ".parquet", ".csv")


class Place(NamedTuple):
    """The place in a reader's section of files and splits."""

    path: str
    splits: tuple[str, str] | None = None
    """The keys of the names of both splits."""
    held_out: str | None = None
    """The key of the held-out file, where each split is a file."""
    folders: bool = False
    """Whether such a file may be FOLDER/SPLIT."""


_HUB, _FILE = ("training_split", "validation_split"), ("training.file_path", None, "validation.file_path")
_COPY = Place(*_FILE, folders=True)
PLACES: Mapping[str, Place] = {
    "huggingface_dat_repo": Place("dataset_path", _HUB),
    "jsonl_dataset_file": Place(*_FILE),
    "agentrl": Place(*_FILE),
    "gsm8k": _COPY,
    "math": _COPY,
    "gaia": _COPY,
    "hotpotqa": _COPY,
    "env_service": Place("env_url", _HUB),
}
"""Readers with a path and splits. The path of any other is its required key, if it has one."""


def reader_keys(kind: str, path: str, training: str | None, validation: str | None) -> dict[str, Any]:
    """Return the keys below `task_reader` and their values, for the reader, path and splits of `set_data`.

    A path or a split that is given is in the keys, or refused. `train` and `test` are AgentJet's defaults, and are no
    splits where a reader has none. Raises UserError for what this reader has no place for.
    """
    kind = SHORT.get(kind, kind)
    place = _find_place(kind)
    if place is None:
        if path:
            raise _homeless("path", path, kind)
        place = Place("")
    told: dict[str, Any] = {place.path: path} if path else {}
    if place.splits is not None:
        told |= {key: split for key, split in zip(place.splits, (training, validation), strict=True) if split}
    elif place.held_out is not None:
        told[place.path] = _file(path, training, kind, "train", place) or path or None
        told[place.held_out] = _file(path, validation, kind, "test", place)
    else:
        for split, unsaid in zip((training, validation), UNSAID, strict=True):
            if split not in (None, unsaid):
                raise _homeless("split", split, kind)
    return {"type": kind, **{f"{kind}.{key}": value for key, value in told.items()}}


def _find_place(kind: str) -> Place | None:
    if kind in PLACES:
        return PLACES[kind]
    part = find_part("reader", kind)
    return Place(part.first_key[0]) if part is not None and part.first_key is not None else None


def _file(path: str, split: str | None, kind: str, unsaid: str, place: Place) -> str | None:
    """The file of a split: itself where it is one, or that of this name in the folder `path`."""
    if split is None or split.endswith(_FILES) or "/" in split:
        return split
    if place.folders and path and not path.endswith(_FILES):
        return str(PurePath(path) / split)
    if split != unsaid:
        raise _homeless("split", split, kind)
    return None


def _homeless(what: str, value: str, kind: str) -> UserError:
    names = ", ".join(name for name in find_all_parts("reader") if _find_place(name))
    return UserError(
        f"The reader {kind} has no place for the {what} {value!r}.",
        where="set_data",
        expected=f"a file for each split, of those that have {what}s: {names}"
        if what == "split"
        else f"a reader that has one: {names}",
        do="leave it out, and set the reader's own keys with `set(task_reader__…)`",
    )
