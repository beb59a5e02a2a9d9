"""Composition of Trinity's config: our layers, the user's `trinity:` section over them.

Invariant: the answer is fully resolved and holds Trinity's keys alone; what ajet owns on this backbone (`OWNED`) has
one source, the keys under `ajet:`; neither Trinity nor ray is imported, so what is wrong is said within a second.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.backbone.verl.cluster.gpus import gpus
from ajet.backbone.verl.cluster.resources import Demand
from ajet.backbone.verl.config.resolvers import register
from ajet.config.locations import default_config
from ajet.config.validate import together
from ajet.schema.commands import command
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config.experiment import Experiment

OWNED: Mapping[str, str] = {
    "project": "ajet.project_name",
    "group": "",
    "name": "ajet.experiment_name",
    "ray_namespace": "",
    "checkpoint_root_dir": "ajet.trainer_common.checkpoint_base_dir",
    "checkpoint_job_dir": "ajet.trainer_common.checkpoint_base_dir",
    "continue_from_checkpoint": "ajet.trainer_common.resume",
    "stages": "",
    "model.model_path": "ajet.model.path",
    "model.temperature": "ajet.rollout.temperature",
    "model.top_p": "ajet.rollout.top_p",
    "model.top_k": "ajet.rollout.top_k",
    "model.max_model_len": "ajet.rollout.max_model_len",
    "model.lora_configs": "",
    "model.tinker": "",
    "model.external_model": "",
    "cluster.node_num": "ajet.trainer_common.nnodes",
    "cluster.gpu_per_node": "ajet.trainer_common.n_gpus_per_node",
    "algorithm.algorithm_type": "ajet.trainer_common.algorithm.adv_estimator",
    "algorithm.repeat_times": "ajet.rollout.num_repeat",
    "algorithm.sample_strategy": "",
    "algorithm.advantage_fn": "ajet.trainer_common.algorithm.adv_estimator",
    "algorithm.policy_loss_fn": "ajet.trainer_common.algorithm.policy_loss",
    "algorithm.kl_loss_fn": "ajet.trainer_common.use_kl_loss",
    "algorithm.kl_penalty_fn": "ajet.trainer_common.algorithm.use_kl_in_reward",
    "algorithm.loss_agg_mode": "ajet.trainer_common.algorithm.loss_aggregation",
    "algorithm.rollout_correction": "ajet.trainer_common.algorithm.importance_weight_cap_ratio",
    "algorithm.bypass_old_logprobs": "ajet.trainer_common.algorithm.old_policy",
    "buffer.batch_size": "ajet.data.train_batch_size",
    "buffer.train_batch_size": "ajet.data.train_batch_size",
    "buffer.total_epochs": "ajet.trainer_common.total_epochs",
    "buffer.total_steps": "ajet.trainer_common.total_training_steps",
    "buffer.explorer_input": "ajet.task_reader",
    "buffer.trainer_input": "",
    "explorer.concurrent_mode": "ajet.rollout.isolation",
    "explorer.max_repeat_times_per_runner": "",
    "explorer.max_retry_times": "ajet.rollout.max_retries",
    "explorer.max_timeout": "ajet.rollout.episode_timeout",
    "explorer.dynamic_timeout": "ajet.rollout.episode_timeout",
    "explorer.auxiliary_models": "",
    "explorer.rollout_model.enable_openai_api": "",
    "explorer.rollout_model.engine_type": "ajet.rollout.name",
    "explorer.rollout_model.engine_num": "ajet.rollout.n_vllm_engine",
    "explorer.rollout_model.tensor_parallel_size": "ajet.rollout.tensor_model_parallel_size",
    "explorer.over_rollout": "",
    "explorer.eval_interval": "",
    "explorer.eval_on_startup": "",
    "synchronizer.sync_style": "ajet.trainer_common.mode",
    "synchronizer.sync_interval": "",
    "synchronizer.explorer_sync_interval": "",
    "synchronizer.trainer_sync_interval": "",
    "synchronizer.sync_offset": "",
    "trainer.trainer_type": "",
    "trainer.total_steps": "ajet.trainer_common.total_training_steps",
    "trainer.save_interval": "ajet.trainer_common.save_freq",
    "trainer.max_checkpoints_to_keep": "ajet.trainer_common.max_checkpoints_to_keep",
    "monitor.monitor_type": "ajet.trainer_common.logger",
}
"""Trinity's keys that its section may not set, and ours that says it; "": what follows from how ajet plays and trains.
"""
Keys = Mapping[str, Mapping[str, str]]
"""Dataclass -> field -> the name of its type."""
BOTH, TRAIN, EXPLORE = "both", "train", "explore"
"""Trinity's modes that mean something here."""
APART = {
    TRAIN: "train with --from-store ADDRESS, and samplers beside it. Without a store of ours Trinity's SQL buffer "
    "would stand between the sides: it marks rows as used when they are read, not when a checkpoint has them, and "
    "hands out the newest first, so that a trainer that was killed has lost rows, and a step mixes those of others",
    EXPLORE: "`ajet sample`, which plays the same episodes into a store. Trinity's own explorer would play into its "
    "SQL buffer, which marks rows as used when they are read, not when a checkpoint has them",
}
"""What stands for a mode of one side. Read in 0.6.0: `buffer/storage/sql.py`, `buffer/reader/sql_reader.py`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What is known once a run has its folder and has counted its tasks."""

    folder: Path
    """Where Trinity keeps what is its own."""
    namespace: str
    """In which the run's actors have their names."""
    steps: int
    """The last one."""


def trinity_config(
    experiment: Experiment, *, model_folder: Path | None = None, run: Launch | None = None
) -> dict[str, Any]:
    """Trinity's whole config as it is filled; what it leaves out has Trinity's own default.

    model_folder: where the model lies, if `model.path` is nothing that Trinity could load. run: None for what a first
    one would have. Raises ConfigError for what Trinity, or we on it, would refuse.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    register()
    device = device_of(experiment)
    refuse(experiment, device)
    users = experiment.backbone_overrides.get("trinity", {})
    names = ["trinity_default", *(["trinity_cpu"] if device == "cpu" else [])]
    layers = [OmegaConf.load(default_config() / "trinity" / f"{name}.yaml") for name in names]
    known: Any = OmegaConf.merge(*layers)
    known["ajet"] = _node(experiment, device, model_folder, run)
    own = {name: value for name, value in experiment.sections.items() if name not in known}
    tree = OmegaConf.merge(known, OmegaConf.create(own), OmegaConf.create(users))
    try:
        resolved: Any = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"The config of Trinity does not compose: {str(error).splitlines()[0]}",
            where=experiment.layers.where(("trinity",)),
            expected="values and interpolations of keys that exist",
        ) from error
    return {name: value for name, value in resolved.items() if name != "ajet" and name not in own}


def mode_of(experiment: Experiment) -> str:
    """Trinity's mode: TRAIN where samplers play, else BOTH."""
    return TRAIN if experiment.ajet.trainer_common.mode == "async" else BOTH


def demand_of(config: Mapping[str, Any]) -> Demand:
    """What of a cluster a run takes. `config`: Trinity's."""
    nodes, each = config["cluster"]["node_num"], config["cluster"]["gpu_per_node"]
    if config["mode"] == TRAIN:
        return Demand((nodes, each), (0, 0))
    model = config["explorer"]["rollout_model"]
    serving = model["engine_num"] * model["tensor_parallel_size"]
    return Demand((1, nodes * each - serving), (1, serving))


def device_of(experiment: Experiment) -> str:
    """cuda or cpu. Raises ConfigError for another."""
    chosen = experiment.ajet.trainer_common.device
    if chosen == "auto":
        return "cuda" if gpus() else "cpu"
    if chosen not in ("cuda", "cpu"):
        raise ConfigError(
            f"Trinity does not train on {chosen!r}.",
            where=_where(experiment, "trainer_common.device"),
            expected="auto, cuda or cpu",
        )
    return chosen


def refuse(experiment: Experiment, device: str) -> None:
    """Raises ConfigError that names every setting that cannot hold on this backbone."""
    problems = [*_refused(experiment, device), *_of_section(experiment)]
    if problems:
        raise together(problems)


def engines_of(experiment: Experiment) -> int:
    """By either of its two keys. Raises ConfigError where they differ."""
    newer, older = experiment.ajet.rollout.n_vllm_engine, experiment.ajet.trainer_common.trinity_only__n_vllm_engine
    if newer != 1 and older not in (1, newer):
        raise ConfigError(
            f"ajet.rollout.n_vllm_engine is {newer}, and ajet.trainer_common.trinity_only__n_vllm_engine is {older}.",
            where=_where(experiment, "trainer_common.trinity_only__n_vllm_engine"),
            expected="one of the two, or the same number",
        )
    return newer if newer != 1 else older


def _node(experiment: Experiment, device: str, model_folder: Path | None, run: Launch | None) -> dict[str, Any]:
    """The typed node, and what our layers ask of it beside."""
    node = experiment.settled()
    ajet = experiment.ajet
    engines, mode = engines_of(experiment), mode_of(experiment)
    if model_folder is not None:
        node["model"]["path"] = str(model_folder)
    slots = node["trainer_common"]["n_gpus_per_node"]
    if device == "cpu" and _is_default(experiment, "n_gpus_per_node"):
        slots = engines * ajet.rollout.tensor_model_parallel_size + 1 if mode == BOTH else 1
    prompt = min(ajet.data.max_prompt_length, ajet.rollout.max_model_len - 1)
    node["derived"] = {
        "folder": str(run.folder if run is not None else experiment.root / experiment.name / "trinity"),
        "namespace": run.namespace if run is not None else "ajet",
        "mode": mode,
        "batches": "WholeSteps" if mode == BOTH else "GroupsOfStore",
        "rows": ajet.data.train_batch_size * ajet.rollout.num_repeat,
        "saves": ajet.trainer_common.save_freq if mode == BOTH else 1,  # what is announced is on the disk
        "engines": engines,
        "gpu_per_node": slots,
        "prompt_tokens": prompt,
        "response_tokens": min(ajet.data.max_response_length, ajet.rollout.max_model_len - prompt),
        "steps": run.steps if run is not None else ajet.trainer_common.total_training_steps,
        "runners": 1 if device == "cpu" else max(1, min(ajet.rollout.max_env_worker, 128) // engines),
        "algorithm": "WithReference" if ajet.trainer_common.use_kl_loss else "WithoutReference",
        "loss": "WeightedTokensWithReference" if ajet.trainer_common.use_kl_loss else "WeightedTokens",
    }
    return node


def _is_default(experiment: Experiment, name: str) -> bool:
    layers = experiment.layers
    return layers.winner(("ajet", "trainer_common", name)) is layers.stack[0]


def _refused(experiment: Experiment, device: str) -> Iterator[ConfigError]:
    ajet = experiment.ajet
    trainer, algorithm = ajet.trainer_common, ajet.trainer_common.algorithm
    engines, parallel = engines_of(experiment), ajet.rollout.tensor_model_parallel_size
    total = trainer.nnodes * trainer.n_gpus_per_node
    given = not (device == "cpu" and _is_default(experiment, "n_gpus_per_node"))
    if mode_of(experiment) == BOTH and given and engines * parallel >= total:
        yield _problem(
            experiment,
            "trainer_common.n_gpus_per_node",
            f"{engines} engines of {parallel} GPUs each leave the trainer none of the {total} there are.",
            "more GPUs than the engines take",
        )
    if ajet.rollout.name == "sglang":
        yield _problem(
            experiment,
            "rollout.name",
            "Trinity's engine of SGLang has no method that ajet could hand token ids to.",
            "vllm, or --backbone verl",
        )
    if device == "cpu" and parallel > 1:
        yield _problem(
            experiment,
            "rollout.tensor_model_parallel_size",
            "An engine on a CPU is one process here: new weights reach its first worker only.",
            "1 with device: cpu",
        )
    if trainer.strategy == "megatron":
        yield _problem(
            experiment, "trainer_common.strategy", "Megatron under Trinity was never run with ajet.", "fsdp or fsdp2"
        )
    if trainer.lora.rank:
        yield _problem(
            experiment,
            "trainer_common.lora.rank",
            "Trinity hands adapters over by checkpoint alone, which ajet does not do.",
            "0, or --backbone verl",
        )
    if trainer.mini_batch_num != 1:
        yield _problem(
            experiment, "trainer_common.mini_batch_num", "Trinity takes one optimizer step for each batch.", "1"
        )
    if trainer.ulysses_sequence_parallel_size != 1:
        yield _problem(
            experiment,
            "trainer_common.ulysses_sequence_parallel_size",
            "The loss of split sequences is not weighed right under Trinity.",
            "1, or --backbone verl",
        )
    if trainer.optim.lr_schedule == "linear":
        yield _problem(
            experiment, "trainer_common.optim.lr_schedule", "Trinity has no linear schedule.", "constant or cosine"
        )
    if algorithm.use_kl_in_reward:
        yield _problem(
            experiment,
            "trainer_common.algorithm.use_kl_in_reward",
            "Trinity gives credit before its trainer has seen the reference model.",
            "false; use_kl_loss is a term of the loss",
        )
    if algorithm.out_of_date_decay is not None and algorithm.importance_weight_cap_ratio is not None:
        yield _problem(
            experiment,
            "trainer_common.algorithm.out_of_date_decay",
            "Bounds by age are not kept here: Trinity's rows do not say how old each token is.",
            "null",
        )
    if algorithm.mismatch_alarm not in (None, "auto"):
        yield _problem(
            experiment,
            "trainer_common.algorithm.mismatch_alarm",
            "The gap of engine and trainer is not measured on Trinity.",
            "auto or null",
        )


def _of_section(experiment: Experiment) -> Iterator[ConfigError]:
    users = experiment.backbone_overrides.get("trinity", {})
    layers = experiment.layers
    if not isinstance(users, Mapping):
        yield ConfigError(
            f"`trinity` is {users!r}.",
            where=layers.where(("trinity",), value=True),
            expected="a mapping of Trinity's own keys",
        )
        return
    wanted, mode = mode_of(experiment), users.get("mode")
    if mode not in (None, wanted):
        conf, store = ("--conf", "FILE.yaml"), "sqlite:PATH"
        trains = command("train", *conf, "--backbone", "trinity", "--with-ray", "--from-store", store)
        sides = f"`{trains}` and `{command('sample', *conf, '--store', store)}`"
        yield ConfigError(
            f"trinity.mode is {mode!r}.",
            where=layers.where(("trinity", "mode"), value=True),
            expected=APART.get(str(mode), f"{wanted}, or no such key"),
            do=f"two commands over one store: {sides}" if mode in APART else "",
        )
    for key, ours in OWNED.items():
        path = tuple(key.split("."))
        if _holds(users, path):
            yield ConfigError(
                f"trinity.{key} is ajet's to say.",
                where=layers.where(("trinity", *path)),
                expected="no such key in your trinity section",
                do=f"set {ours}" if ours else "",
            )
    known = trinitys_keys()
    if known:
        yield from _unknown(experiment, users, known, "Config", ())


def _unknown(
    experiment: Experiment,
    users: Mapping[str, Any],
    known: Mapping[str, Mapping[str, str]],
    kind: str,
    at: tuple[str, ...],
) -> Iterator[ConfigError]:
    fields = known[kind]
    for name, value in users.items():
        path = (*at, str(name))
        if name not in fields:
            near = get_close_matches(str(name), fields, 1)
            yield ConfigError(
                f"Trinity has no key {'.'.join(path)}.",
                where=experiment.layers.where(("trinity", *path)),
                expected=", ".join(sorted(fields)),
                do=f"did you mean {near[0]}?" if near else "",
            )
        elif isinstance(value, Mapping) and fields[name] in known:
            yield from _unknown(experiment, value, known, fields[name], path)


@lru_cache(maxsize=1)
def trinitys_keys() -> Keys:
    """The fields of Trinity's configuration, read as text; empty where Trinity is not installed."""
    from importlib.metadata import distributions

    from ajet.backbone.trinity.package import DISTRIBUTION, require_trinity
    from ajet.schema.errors import UserError

    try:
        folder = require_trinity()
    except UserError:  # said by whoever needs it
        return {}
    places = [str(folder)] if folder is not None else sys.path
    (found, *_) = distributions(name=DISTRIBUTION, path=places)
    file = Path(str(found.locate_file("trinity/common/config.py")))
    classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    return {each.name: dict(_fields(each.body)) for each in classes}


def _fields(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for each in body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            kind = ast.unparse(each.annotation)
            yield each.target.id, kind.removeprefix("Optional[").removesuffix("]")


def _holds(tree: Any, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = tree[name]
    return True


def _where(experiment: Experiment, key: str) -> str:
    return experiment.layers.where(("ajet", *key.split(".")), value=True)


def _problem(experiment: Experiment, key: str, what: str, expected: str) -> ConfigError:
    return ConfigError(what, where=f"{_where(experiment, key)} (ajet.{key})", expected=expected)
