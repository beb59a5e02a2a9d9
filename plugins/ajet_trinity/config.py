"""Composition of Trinity's config: ajet's layers, with the user's `trinity:` section on top.

Invariant: the result is fully resolved and holds only Trinity's keys; values owned by ajet on this backbone
(`users_section.OWNED`) come only from keys under `ajet:`. Neither Trinity nor ray is imported, so errors appear within
a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.backbone.descriptors import DEBUGS_OWN, FROM_STORE, HELD_OUT, NO_VALIDATION, STEP_ENDS, TEXT_ONLY, TIMES
from ajet.config.backbones import Descriptor
from ajet.config.validate import join_errors
from ajet.schema.errors import ConfigError
from ajet_ray.cluster.gpus import list_gpus
from ajet_ray.cluster.resources import Demand
from ajet_ray.resolvers import register_resolvers
from ajet_trinity.users_section import BOTH, TRAIN, find_section_errors

if TYPE_CHECKING:
    from ajet.config.experiment import Experiment


@dataclass(frozen=True, slots=True)
class TrinityLaunch:
    """Values for Trinity's config that are known once a run has its folder and its number of tasks."""

    folder: Path
    """The folder in the run's folder to which Trinity writes."""
    namespace: str
    """Ray namespace of the run's actors."""
    steps: int
    """The last step of the run."""


def compose_trinity_config(
    experiment: Experiment, *, model_folder: Path | None = None, run: TrinityLaunch | None = None
) -> dict[str, Any]:
    """Compose Trinity's config from ajet's layers and the user's `trinity:` section.

    The result leaves out keys that keep Trinity's defaults.

    Args:
        model_folder: folder of the model, if Trinity cannot load `model.path` itself.
        run: folder, namespace and last step of the run, or None to only check or show the config.

    Raises:
        ConfigError: Trinity, or ajet on Trinity, does not support a setting.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    register_resolvers()
    device = choose_device(experiment)
    refuse(experiment, device)
    user_section = experiment.backbone_overrides.get("trinity", {})
    layer_names = ["trinity_default", *(["trinity_cpu"] if device == "cpu" else [])]
    layers = [OmegaConf.load(LAYERS / f"{name}.yaml") for name in layer_names]
    composed: Any = OmegaConf.merge(*layers)
    composed["ajet"] = _build_node(experiment, device, model_folder, run)
    own_sections = {name: value for name, value in experiment.sections.items() if name not in composed}
    tree = OmegaConf.merge(composed, OmegaConf.create(own_sections), OmegaConf.create(user_section))
    try:
        resolved: Any = OmegaConf.to_container(tree, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"YAML and overrides of Trinity cannot be combined: {str(error).splitlines()[0]}",
            where=experiment.layers.locate(("trinity",)),
            expected="values, and interpolations of existing keys",
        ) from error
    return {name: value for name, value in resolved.items() if name != "ajet" and name not in own_sections}


def choose_mode(experiment: Experiment) -> str:
    """Return Trinity's mode: TRAIN if remote samplers run the episodes, else BOTH."""
    return TRAIN if experiment.ajet.trainer_common.mode == "async" else BOTH


def compute_demand(config: Mapping[str, Any]) -> Demand:
    """Return the accelerators and nodes that a run needs from the cluster.

    Args:
        config: Trinity's config.
    """
    node_count, gpus_per_node = config["cluster"]["node_num"], config["cluster"]["gpu_per_node"]
    if config["mode"] == TRAIN:
        return Demand((node_count, gpus_per_node), (0, 0))
    engine_settings = config["explorer"]["rollout_model"]
    serving_gpus = engine_settings["engine_num"] * engine_settings["tensor_parallel_size"]
    return Demand((1, node_count * gpus_per_node - serving_gpus), (1, serving_gpus))


def choose_device(experiment: Experiment) -> str:
    """Return the device of the run, cuda or cpu. Raises ConfigError if another device is configured."""
    device = experiment.ajet.trainer_common.device
    if device == "auto":
        return "cuda" if list_gpus() else "cpu"
    if device not in ("cuda", "cpu"):
        raise ConfigError(
            f"Trinity does not train on {device!r}.",
            where=_find_place(experiment, "trainer_common.device"),
            expected="auto, cuda or cpu",
        )
    return device


def refuse(experiment: Experiment, device: str) -> None:
    """Raise one ConfigError with all settings that this backbone does not support."""
    problems = [*_list_refused(experiment, device), *find_section_errors(experiment, choose_mode(experiment))]
    if problems:
        raise join_errors(problems)


def count_engines(experiment: Experiment) -> int:
    """Return the number of inference engines, which either of two config keys sets.

    Raises:
        ConfigError: both keys are set, to different numbers.
    """
    rollout_engines, trainer_engines = (
        experiment.ajet.rollout.n_vllm_engine,
        experiment.ajet.trainer_common.trinity_only__n_vllm_engine,
    )
    # 1 is the default of both keys.
    if rollout_engines != 1 and trainer_engines not in (1, rollout_engines):
        raise ConfigError(
            f"ajet.rollout.n_vllm_engine is {rollout_engines}, but "
            f"ajet.trainer_common.trinity_only__n_vllm_engine is {trainer_engines}.",
            where=_find_place(experiment, "trainer_common.trinity_only__n_vllm_engine"),
            expected="only one of the two, or the same number",
        )
    return rollout_engines if rollout_engines != 1 else trainer_engines


def _build_node(
    experiment: Experiment, device: str, model_folder: Path | None, run: TrinityLaunch | None
) -> dict[str, Any]:
    """Build the node `ajet` that the YAML layers refer to: the typed settings and computed values (`derived`)."""
    node = experiment.settle_values()
    ajet = experiment.ajet
    engine_count, mode = count_engines(experiment), choose_mode(experiment)
    if model_folder is not None:
        node["model"]["path"] = str(model_folder)
    gpus_per_node = node["trainer_common"]["n_gpus_per_node"]
    # On a CPU Ray counts slots: one for each process of an engine, and one for the trainer.
    if device == "cpu" and _is_default(experiment, "n_gpus_per_node"):
        gpus_per_node = engine_count * ajet.rollout.tensor_model_parallel_size + 1 if mode == BOTH else 1
    # At least one token must remain for the reply.
    prompt_tokens = min(ajet.data.max_prompt_length, ajet.rollout.max_model_len - 1)
    node["derived"] = {
        "folder": str(run.folder if run is not None else experiment.root / experiment.name / "trinity"),
        "namespace": run.namespace if run is not None else "ajet",
        "mode": mode,
        "batches": "ExplorerSteps" if mode == BOTH else "StoreGroups",
        "rows": ajet.data.train_batch_size * ajet.rollout.num_repeat,
        "saves": ajet.trainer_common.save_freq if mode == BOTH else 1,  # announced weights must be on disk
        "engines": engine_count,
        "gpu_per_node": gpus_per_node,
        "prompt_tokens": prompt_tokens,
        "response_tokens": min(ajet.data.max_response_length, ajet.rollout.max_model_len - prompt_tokens),
        "steps": run.steps if run is not None else ajet.trainer_common.total_training_steps,
        "runners": 1 if device == "cpu" else max(1, min(ajet.rollout.max_env_worker, 128) // engine_count),
        "algorithm": "WithReference" if ajet.trainer_common.use_kl_loss else "WithoutReference",
        "loss": "WeightedTokensWithReference" if ajet.trainer_common.use_kl_loss else "WeightedTokens",
    }
    return node


def _is_default(experiment: Experiment, name: str) -> bool:
    """True if neither YAML nor overrides set this key below `ajet.trainer_common`."""
    layers = experiment.layers
    return layers.find_winner(("ajet", "trainer_common", name)) is layers.stack[0]


def _list_refused(experiment: Experiment, device: str) -> Iterator[ConfigError]:
    """Yield an error for each setting that Trinity cannot follow, so that none is ignored silently."""
    ajet = experiment.ajet
    trainer, algorithm = ajet.trainer_common, ajet.trainer_common.algorithm
    engine_count, gpus_per_engine = count_engines(experiment), ajet.rollout.tensor_model_parallel_size
    total_gpus = trainer.nnodes * trainer.n_gpus_per_node
    are_gpus_set = not (device == "cpu" and _is_default(experiment, "n_gpus_per_node"))
    limits_by_age = algorithm.out_of_date_decay is not None and algorithm.importance_weight_cap_ratio is not None
    # (True if the setting is refused, key below `ajet`, problem, expected values).
    rules: list[tuple[bool, str, str, str]] = [
        (
            choose_mode(experiment) == BOTH and are_gpus_set and engine_count * gpus_per_engine >= total_gpus,
            "trainer_common.n_gpus_per_node",
            f"{engine_count} engines of {gpus_per_engine} GPUs each leave no GPU for the trainer; there are "
            f"{total_gpus}.",
            "more GPUs than the engines use",
        ),
        (
            ajet.rollout.name == "sglang",
            "rollout.name",
            "Trinity's SGLang engine cannot take token ids, which ajet sends.",
            "vllm, or --backbone verl",
        ),
        (
            device == "cpu" and gpus_per_engine > 1,
            "rollout.tensor_model_parallel_size",
            "On a CPU, Trinity's engine must be one process: new weights reach only its first worker.",
            "1 with device: cpu",
        ),
        (
            trainer.strategy == "megatron",
            "trainer_common.strategy",
            "ajet has not been tested with Megatron under Trinity.",
            "fsdp or fsdp2",
        ),
        (
            trainer.lora.rank > 0,
            "trainer_common.lora.rank",
            "Trinity sends adapters only by checkpoints, which ajet does not support.",
            "0, or --backbone verl",
        ),
        (
            trainer.mini_batch_num != 1,
            "trainer_common.mini_batch_num",
            "Trinity makes one optimizer step per batch.",
            "1",
        ),
        (
            trainer.ulysses_sequence_parallel_size != 1,
            "trainer_common.ulysses_sequence_parallel_size",
            "Trinity does not weight the loss of split sequences correctly.",
            "1, or --backbone verl",
        ),
        (
            trainer.optim.lr_schedule == "linear",
            "trainer_common.optim.lr_schedule",
            "Trinity has no linear learning-rate schedule.",
            "constant or cosine",
        ),
        (
            algorithm.use_kl_in_reward,
            "trainer_common.algorithm.use_kl_in_reward",
            "Trinity computes advantages before its trainer has the reference model's log-probabilities.",
            "false; use_kl_loss adds a KL term to the loss instead",
        ),
        (
            limits_by_age,
            "trainer_common.algorithm.out_of_date_decay",
            "Limits by token age do not work on Trinity: its rows do not contain the age of each token.",
            "null",
        ),
        (
            algorithm.mismatch_alarm not in (None, "auto"),
            "trainer_common.algorithm.mismatch_alarm",
            "On Trinity the difference between engine and trainer is not measured.",
            "auto or null",
        ),
    ]
    for is_violated, key, message, expected in rules:
        if is_violated:
            yield ConfigError(message, where=f"{_find_place(experiment, key)} (ajet.{key})", expected=expected)


def _find_place(experiment: Experiment, key: str) -> str:
    """Return where a key below `ajet` was set, as file:line or the name of an override."""
    return experiment.layers.locate(("ajet", *key.split(".")), value=True)


LAYERS = Path(__file__).with_name("layers")
"""YAML files with Trinity's keys, filled from ajet's."""
ENGINES = "Trinity's engines are configured under trinity.explorer.rollout_model"

TRINITY = Descriptor(
    "trinity",
    "trains on Ray, by Trinity-RFT's explorer and trainer",
    can=frozenset({"trains", "decouples", "spreads"}),
    runner="ajet_trinity.launch:TrinityRunner",
    roots=("trinity",),
    filled=(LAYERS / "trinity_default.yaml",),
    idle={
        **dict.fromkeys(TIMES, FROM_STORE),
        "rollout.engine": ENGINES,
        "rollout.vllm": ENGINES,
        "rollout.endpoint": TEXT_ONLY,
        "rollout.val_kwargs": NO_VALIDATION,
        "rollout.submit_oversample_multiplier": "Trinity runs exactly the groups that a batch needs",
        **dict.fromkeys(HELD_OUT, NO_VALIDATION),
        "trainer_common.val_before_train": NO_VALIDATION,
        "trainer_common.val_pass_n": NO_VALIDATION,
        "trainer_common.test_freq": NO_VALIDATION,
        "trainer_common.max_staleness": FROM_STORE,
        "trainer_common.max_staleness_strategy": "this backbone always drops older groups",
        "trainer_common.megatron": "Trinity's trainer distributes weights by FSDP",
        "trainer_common.canary": "the difference between engine and trainer is not measured on this backbone",
        "trainer_common.optim.eps": "Trinity's optimizer has no such key",
        "trainer_common.threads": "Ray sets the number of threads of Trinity's processes",
        "trainer_common.grace": STEP_ENDS,
        "debug": DEBUGS_OWN,
    },
)
