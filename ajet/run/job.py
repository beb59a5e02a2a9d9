"""AgentJetJob: the same launch from Python.

Invariant: a job is a YAML under construction; `tune()` runs exactly what `ajet --conf` would run on the file that
`dump_job_as_yaml` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import Experiment
    from ajet.config.view import View
    from ajet.workflow import Workflow

_READERS = {
    "hf": "huggingface_dat_repo",
    "huggingface": "huggingface_dat_repo",
    "jsonl": "jsonl_dataset_file",
    "dummy": "random_dummy",
}


class AgentJetJob:
    """Build an experiment step by step: `AgentJetJob(model=…).set_workflow(…).set_data(…).tune()`.

    `n_gpu` is GPUs per node (0: CPU; None: the default); `algorithm` is `trainer_common.algorithm.adv_estimator`, or a
    class of your own; `n_gpu_for_infer` is the number of inference engines where the backbone separates them. Anything
    else goes through `set(key=…)`.
    """

    def __init__(
        self,
        backbone: str = "local",
        model: str = "embedded:smollm2-135m",
        n_gpu: int | None = 0,
        algorithm: type[Algorithm] | str = "grpo",
        n_gpu_for_infer: int | None = None,
        *,
        name: str = "ajet_job",
    ) -> None:
        self._base = Path.cwd()
        self._own: dict[str, dict[str, Any]] = {}
        self._tree: dict[str, Any] = {
            "experiment_name": name,
            "backbone": backbone,
            "model": {"path": model},
            "trainer_common": {"algorithm": {"adv_estimator": _named(algorithm)}},
        }
        if n_gpu is not None:
            self._tree["trainer_common"]["n_gpus_per_node"] = n_gpu
        if n_gpu_for_infer is not None:
            self._tree["rollout"] = {"n_vllm_engine": n_gpu_for_infer}

    @property
    def config(self) -> View:
        """What it is by now, defaults included, with attribute access (`job.config.ajet.rollout.num_repeat`). It is to
        be read: `set` changes it. Raises ConfigError."""
        return self.experiment().config

    def set_workflow(
        self, workflow: type[Workflow] | Callable[[Any, Any], Any] | str, ensure_reward_in_workflow: bool = False
    ) -> AgentJetJob:
        """A Workflow class, a function `(task, tuner)`, or a reference to one. `ensure_reward_in_workflow`: no judge is
        asked, also where one was set."""
        if ensure_reward_in_workflow:
            self._tree.setdefault("task_judge", {})["judge_protocol"] = None
        self._tree.setdefault("rollout", {})["user_workflow"] = _named(workflow)
        return self

    def set_judge(self, judge: type[Any] | Callable[[Any, Any], Any] | str) -> AgentJetJob:
        """A BaseJudge, a function `(task, output)`, or a reference to one."""
        self._tree.setdefault("task_judge", {})["judge_protocol"] = _named(judge)
        return self

    def set_data(
        self, type: str, dataset_path: str = "", training_split: str = "train", validation_split: str = "test"
    ) -> AgentJetJob:
        """Tasks: `type` is a reader's name ("hf" or "huggingface", "jsonl" and "dummy" for short). For JSONL the splits
        are file paths: `dataset_path` the training file, `validation_split` the validation file; none validates
        nothing."""
        kind = _READERS.get(type, type)
        reader: dict[str, Any] = {"type": kind}
        if kind == "jsonl_dataset_file":
            reader[kind] = {"training": {"file_path": dataset_path}}
            if validation_split.endswith((".jsonl", ".json")):
                reader[kind]["validation"] = {"file_path": validation_split}
        elif kind == "huggingface_dat_repo":
            reader[kind] = {
                "dataset_path": dataset_path,
                "training_split": training_split,
                "validation_split": validation_split,
            }
        self._tree["task_reader"] = reader
        return self

    def set(self, **values: Any) -> AgentJetJob:
        """Any other `ajet.*` key, dots as double underscores: `set(rollout__num_repeat=8)`."""
        for path, value in values.items():
            node = self._tree
            *parents, leaf = path.split("__")
            for part in parents:
                node = node.setdefault(part, {})
            node[leaf] = value
        return self

    def set_section(self, name: str, /, **values: Any) -> AgentJetJob:
        """A section of your own beside `ajet`, which a workflow reads as `tuner.config.NAME`, or one of a backbone
        (`verl`, `trinity`). Raises UserError for `ajet`, whose keys `set` sets."""
        if name == "ajet":
            raise UserError("`ajet` is no section of your own.", do="set its keys with `set(rollout__num_repeat=8)`")
        self._own.setdefault(name, {}).update(values)
        return self

    def dump_job_as_yaml(self, path: str | Path) -> Path:
        """Write the YAML that `ajet --conf` runs; its folder is made where there is none."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({"ajet": self._tree, **self._own}, sort_keys=False, allow_unicode=True))
        return path

    def tune(self, *, fresh: bool = False) -> Path:
        """Run it in this process; answers the run directory. Raises UserError for what the person can mend."""
        from ajet.record.log_lines import shown_in_a_program
        from ajet.run.launch import launch
        from ajet.run.options import LaunchOptions

        experiment = self.experiment()
        with shown_in_a_program():
            launch(experiment, LaunchOptions(fresh=fresh))
        return experiment.root / experiment.name

    def experiment(self) -> Experiment:
        """What `tune()` runs, composed. Raises ConfigError."""
        from ajet.config import Experiment

        return Experiment.from_dict({"ajet": self._tree, **self._own}, base=self._base, in_python=True)


def _named(kind: Any) -> str:
    """A name, a reference, or the reference to a class or function."""
    import sys

    if isinstance(kind, str):
        return kind
    name = getattr(kind, "__qualname__", repr(kind))
    module = sys.modules.get(getattr(kind, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if file is None or not name.isidentifier():
        raise UserError(
            f"{name} can't be named by a reference.",
            expected="a class or function at the top level of a file",
            do="move it there, or pass a reference such as workflow.py->MyWorkflow",
        )
    return f"{Path(file).resolve()}->{name}"
