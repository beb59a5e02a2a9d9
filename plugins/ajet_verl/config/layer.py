"""Composes verl's config from verl's defaults, ajet's layers and the user's sections.

Invariants: later layers take precedence. The result is fully resolved and has verl's root names only. Neither verl nor
ray is imported: `pkg://verl.trainer.config` is read from the package's folder, since importing the package to find its
YAML files takes 15 seconds.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.references import relativize
from ajet.engine.model_limits import ModelLimits
from ajet.schema.commands import format_extra_install
from ajet.schema.errors import ConfigError, MissingExtraError, UserError
from ajet_ray.printable import make_printable
from ajet_ray.resolvers import register_resolvers
from ajet_verl.config.refusals import VLLM_LARGEST_LORA_RANK, refuse
from ajet_verl.config.unknown import VerlSource, refuse_unknown
from ajet_verl.descriptor import LAYERS, VERL

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.config.experiment import Experiment

VERL_VERSION = "0.9.1"
"""The verl version supported by the layers."""
ROOTS = VERL.sections
"""Root names of verl's config."""
TOP_LEVEL = tuple(root for root in VERL.roots if root != VERL.name)
"""Root names also allowed at the top level of a YAML."""


def compose_verl_config(
    experiment: Experiment,
    *,
    model: ModelLimits | None = None,
    gpu_bytes: int | None = None,
    model_folder: Path | None = None,
    run_folder: Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Compose the complete, checked config of verl's trainer.

    Args:
        model: facts known about the model.
        gpu_bytes: memory of one GPU, if known.
        model_folder: folder of the model, if verl cannot load `model.path` itself.
        run_folder: the run directory; by default the directory of a first run.
        device: the value of `trainer_common.device: auto`.

    Raises:
        ConfigError: verl would refuse a setting.
        MissingExtraError: verl is not installed.
        UserError: another version of verl is installed.
    """
    from omegaconf import OmegaConf

    register_resolvers()
    model = model or ModelLimits()
    ajet = _ajet_node(experiment, model_folder, run_folder, device) | _describe_model(experiment, model)
    extra = find_extra(ajet["trainer_common"]["device"])
    folder = find_config_folder(extra)
    with _explain_errors(experiment):
        composed, tree = _lay_sections(experiment, ajet, folder)
        if model_folder is not None and experiment.ajet.model.path == tree.actor_rollout_ref.model.path:
            tree.actor_rollout_ref.model.path = str(model_folder)
        refuse(experiment, tree, model, gpu_bytes)
        if folder is None:
            raise MissingExtraError("verl", extra, needed_for="The verl backbone")
        if merged := _merged_sections(experiment):
            plain: Any = OmegaConf.to_container(composed, resolve=False)
            refuse_unknown(experiment, merged, plain, VerlSource(folder.parents[1]))
        resolved: Any = OmegaConf.to_container(tree, resolve=True)
    return {name: resolved[name] for name in ROOTS}


def compose_sections(experiment: Experiment) -> tuple[DictConfig, DictConfig, dict[str, Any]]:
    """Compose verl's config without checks.

    Returns:
        The config without the user's sections, the config with them, and the sections as one tree.
    """
    register_resolvers()
    ajet = _ajet_node(experiment, None, None, None) | _describe_model(experiment, ModelLimits())
    folder = find_config_folder(find_extra(ajet["trainer_common"]["device"]))
    with _explain_errors(experiment):
        return *_lay_sections(experiment, ajet, folder), _merged_sections(experiment)


def _lay_sections(experiment: Experiment, ajet: dict[str, Any], folder: Path | None) -> tuple[DictConfig, DictConfig]:
    """Compose verl's defaults and ajet's layers, with unresolved interpolations.

    Args:
        ajet: the settings below `ajet`, which the layers refer to.
        folder: folder of verl's YAML files, or None without verl.

    Returns:
        The config without the user's sections, and the config with them.
    """
    from omegaconf import OmegaConf

    trainer = ajet["trainer_common"]
    composed: Any = pickle.loads(
        _compose_shipped(folder, trainer["strategy"] == "megatron", trainer["device"] == "cpu")
    )
    composed["ajet"] = ajet
    user_sections = _collect_sections(experiment)
    tree: Any = OmegaConf.merge(composed, OmegaConf.create(user_sections)) if user_sections else composed
    return composed, tree


def find_extra(device: str) -> str:
    """Return the name of ajet's pip extra that installs verl for `device`."""
    return "verl-cpu" if device == "cpu" else "verl"


def make_printable_config(experiment: Experiment, tree: dict[str, Any]) -> dict[str, Any]:
    """Return a printable copy of verl's config, without secrets and environment values."""
    return make_printable(tree, _merged_sections(experiment))


def _ajet_node(
    experiment: Experiment, model_folder: Path | None, run_folder: Path | None, device: str | None
) -> dict[str, Any]:
    """Build the node `ajet` that the YAML layers refer to.

    It has the typed settings, with paths that do not depend on the YAML's folder, and a few computed values.
    """
    node = experiment.settle_values()
    node["verl_layers"] = str(LAYERS)
    node["val_repeats"] = experiment.ajet.validation_repeats
    trainer = node["trainer_common"]
    algorithm = experiment.ajet.trainer_common.algorithm
    if algorithm.old_policy != "behaviour":
        trainer["algorithm"]["is_cap"] = algorithm.is_cap  # verl's mode decides the value of `auto`
    if trainer["device"] == "auto" and device is not None:
        trainer["device"] = device
    is_rounded = experiment.ajet.model.dtype != "float32"
    trainer["algorithm"]["mismatch_alarm"] = experiment.ajet.trainer_common.mismatch_alarm(rounded=is_rounded)
    # Paths of the user's code are relative: on a node without the project's folder the working directory is a copy.
    for key in ("adv_estimator", "policy_loss"):
        trainer["algorithm"][key] = relativize(trainer["algorithm"][key], experiment.base)
    # The default number of GPUs per node is for GPUs: on a CPU one process trains, unless the user set a number.
    gpu_count_layer = experiment.layers.find_winner(("ajet", "trainer_common", "n_gpus_per_node"))
    if trainer["device"] == "cpu" and gpu_count_layer is experiment.layers.stack[0]:
        trainer["n_gpus_per_node"] = 1
    if model_folder is not None:
        node["model"]["path"] = str(model_folder)
    if run_folder is not None:
        node.update(experiment_dir=str(run_folder.parent), experiment_name=run_folder.name)
    folder = node["trainer_common"]["checkpoint_base_dir"]
    if folder:
        node["trainer_common"]["checkpoint_base_dir"] = str(Path(folder).expanduser().absolute())
    return node


def _describe_model(experiment: Experiment, model: ModelLimits) -> dict[str, Any]:
    """Return the values of the node `ajet` that depend on the model."""
    adapted = list_served_layers(experiment, model)
    return {"sees_images": model.images, "merges_adapters": not adapted, "served_layers": adapted or None}


def list_served_layers(experiment: Experiment, model: ModelLimits) -> list[str]:
    """Return the names of the linear layers in which the servers apply the LoRA adapter.

    The list is empty if the servers get merged weights instead: verl sends adapters only to servers that share the
    trainer's accelerators and not from Megatron, and experts, image encoders and ranks above vLLM's limit cannot be
    adapted there. The layers are given by name to leave out the language-model head: with an adapter on it, vLLM
    crashes when it scores a prompt.
    """
    settings, lora = experiment.ajet, experiment.ajet.trainer_common.lora
    adapted_layers = model.linear_layers if lora.target_modules == "all-linear" else lora.target_modules
    are_all_linear = isinstance(adapted_layers, list | tuple) and {*adapted_layers} <= {*model.linear_layers}
    mode, strategy = settings.trainer_common.mode, settings.trainer_common.strategy
    can_send_adapters = (
        settings.rollout.name == "vllm" and mode in ("sync", "colocate_async") and strategy != "megatron"
    )
    is_dense_text_model = not model.experts and not model.images
    return (
        sorted(adapted_layers)
        if are_all_linear and can_send_adapters and is_dense_text_model and 0 < lora.rank <= VLLM_LARGEST_LORA_RANK
        else []
    )


def _collect_sections(experiment: Experiment) -> dict[str, Any]:
    """Return verl's sections as one tree, with the user's own sections for interpolations."""
    sections = {name: value for name, value in experiment.sections.items() if name not in ROOTS}
    return {**sections, **_merged_sections(experiment)}


def _merged_sections(experiment: Experiment) -> dict[str, Any]:
    """Merge the section `verl:` and verl's sections at the top level of the YAML into one tree.

    Raises:
        ConfigError: both set a key to different values.
    """
    overrides = experiment.backbone_overrides
    verl = overrides.get("verl", {})
    for name in ("verl", *TOP_LEVEL):
        if not isinstance(overrides.get(name, {}), dict):
            raise ConfigError(
                f"`{name}` is {overrides[name]!r}.",
                where=experiment.layers.locate((name,), value=True),
                expected="a mapping of verl's own keys",
            )
    for name in verl:
        if name not in ROOTS:
            similar = get_close_matches(str(name), ROOTS, 1)
            raise ConfigError(
                f"verl's configuration has no section {name!r} at its top level.",
                where=experiment.layers.locate(("verl", name)),
                expected=", ".join(ROOTS),
                do=f"did you mean verl.{similar[0]}?" if similar else "",
            )
    merged = deepcopy(verl)
    for name in TOP_LEVEL:
        if name in overrides:
            merged[name] = _join_sections(merged.get(name, {}), overrides[name], (name,), experiment)
    return merged


def _join_sections(verl_section: Any, top_section: Any, path: tuple[str, ...], experiment: Experiment) -> Any:
    """Merge two sections that both set verl's keys, at the same path.

    Args:
        verl_section: the section below `verl:`.
        top_section: the section at the YAML's top level.
        path: path of the section, for errors.

    Raises:
        ConfigError: both set a key to different values.
    """
    if isinstance(verl_section, dict) and isinstance(top_section, dict):
        shared_keys = {
            name: _join_sections(verl_section[name], top_section[name], (*path, name), experiment)
            for name in verl_section
            if name in top_section
        }
        return {**verl_section, **top_section, **shared_keys}
    if verl_section == top_section:
        return verl_section
    key = ".".join(path)
    raise ConfigError(
        f"{key} is {top_section!r} and verl.{key} is {verl_section!r}.",
        where=" and ".join(experiment.layers.locate(key_path, value=True) for key_path in (path, ("verl", *path))),
        expected="one of the two",
    )


@lru_cache(maxsize=8)
def _compose_shipped(folder: Path | None, megatron: bool, cpu: bool) -> bytes:
    """Merge ajet's layers into verl's config `ppo_trainer`, and return the result pickled, with interpolations.

    Unpickling a copy is ten times faster than building the config from a mapping.

    Args:
        folder: folder of verl's YAML files, or None without verl.
        megatron: True to train with Megatron, False with FSDP.
        cpu: True for a machine without an accelerator.
    """
    from omegaconf import OmegaConf

    layer_names = ["verl_default", "verl_megatron" if megatron else "verl_fsdp", *(["verl_cpu"] if cpu else [])]
    verl_defaults = [] if folder is None else [compose_verls_defaults(folder, megatron)]
    ajet_layers = [OmegaConf.load(LAYERS / f"{name}.yaml") for name in layer_names]
    return pickle.dumps(OmegaConf.merge(*verl_defaults, *ajet_layers))


@lru_cache(maxsize=4)
def compose_verls_defaults(folder: Path, megatron: bool) -> Any:
    """Compose verl's defaults with Hydra, for Megatron or FSDP. Interpolations stay unresolved."""
    import hydra
    from omegaconf import OmegaConf

    with _isolate_hydra(), hydra.initialize_config_dir(str(folder), job_name="ajet", version_base="1.3"):
        composed = hydra.compose("ppo_trainer", overrides=[f"model_engine={'megatron' if megatron else 'dp'}"])
    return OmegaConf.create(OmegaConf.to_container(composed, resolve=False))


def find_config_folder(extra: str) -> Path | None:
    """Return the folder `verl/trainer/config` of the installed verl, or None if verl is not installed.

    Args:
        extra: pip extra named in the error's advice.

    Raises:
        UserError: another version is installed.
    """
    spec = util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        return None
    package, installed = Path(next(iter(spec.submodule_search_locations))), metadata.version("verl")
    if installed != VERL_VERSION:
        raise UserError(
            f"verl {installed} is installed.",
            where=str(package),
            expected=f"verl {VERL_VERSION}: its configuration differs between versions",
            do=format_extra_install(extra),
        )
    return package / "trainer" / "config"


@contextmanager
def _isolate_hydra() -> Iterator[None]:
    """Clear Hydra's global state for the block and restore it afterwards, since the user's program may use Hydra
    itself."""
    from hydra.core.global_hydra import GlobalHydra

    earlier = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = earlier


@contextmanager
def _explain_errors(experiment: Experiment) -> Iterator[None]:
    """Convert OmegaConf errors within the block to a ConfigError with the place of the user's key."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except OmegaConfBaseException as error:
        key = str(error.full_key or "").replace("[", ".").replace("]", "")
        path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        layers = experiment.layers
        set_paths = [
            candidate for candidate in (path, ("verl", *path)) if key and layers.find_winner(candidate) is not None
        ]
        raise ConfigError(
            f"YAML and overrides of verl cannot be combined: {key + ': ' if key else ''}{str(error).splitlines()[0]}",
            where=layers.locate(set_paths[-1], value=True) if set_paths else str(experiment.yaml_path),
            expected="values, and interpolations of existing keys",
        ) from error
