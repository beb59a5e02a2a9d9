"""Composition of verl's config: verl's own defaults, our layers, the user's sections.

Invariant: later layers win; the answer is fully resolved and holds nothing but verl's root names; neither verl nor ray
is imported: `pkg://verl.trainer.config` is read at the place where the package lies, since importing the package to
find its YAML files takes a quarter of a minute.
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
from ajet_verl.config.refusals import refuse
from ajet_verl.config.unknown import VerlSource, refuse_unknown
from ajet_verl.descriptor import LAYERS, VERL

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.config.experiment import Experiment

VERL_VERSION = "0.9.1"
"""The version whose config files the layers fit."""
ROOTS = VERL.sections
"""The root names of verl's config."""
TOP_LEVEL = tuple(root for root in VERL.roots if root != VERL.name)
"""Those that may also stand at the top level of a YAML."""


def compose_verl_config(
    experiment: Experiment,
    *,
    model: ModelLimits | None = None,
    gpu_bytes: int | None = None,
    model_folder: Path | None = None,
    run_folder: Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """The config that verl's trainer gets.

    model: what is known of the model. gpu_bytes: the memory of one GPU, where known. model_folder: where the model
    lies, if `model.path` is no path or name that verl could load. run_folder: the run directory; without it, the one
    that a first run would have. device: what `trainer_common.device: auto` comes to. Raises ConfigError for settings
    that verl would refuse, MissingExtraError without verl, UserError for another version of it.
    """
    from omegaconf import OmegaConf

    register_resolvers()
    model = model or ModelLimits()
    ajet = _ajet_node(experiment, model_folder, run_folder, device) | {"sees_images": model.images}
    extra = find_extra(ajet["trainer_common"]["device"])
    folder = find_config_folder(extra)
    with _explain_errors(experiment):
        known, tree = _lay_sections(experiment, ajet, folder)
        if model_folder is not None and experiment.ajet.model.path == tree.actor_rollout_ref.model.path:
            tree.actor_rollout_ref.model.path = str(model_folder)
        refuse(experiment, tree, model, gpu_bytes)
        if folder is None:
            raise MissingExtraError("verl", extra, needed_for="The verl backbone")
        if merged := _merged_sections(experiment):
            plain: Any = OmegaConf.to_container(known, resolve=False)
            refuse_unknown(experiment, merged, plain, VerlSource(folder.parents[1]))
        resolved: Any = OmegaConf.to_container(tree, resolve=True)
    return {name: resolved[name] for name in ROOTS}


def compose_sections(experiment: Experiment) -> tuple[DictConfig, DictConfig, dict[str, Any]]:
    """Compose verl's config and check nothing.

    Returns:
        The config without the user's sections, the config with them, and these sections as one tree.
    """
    register_resolvers()
    ajet = _ajet_node(experiment, None, None, None) | {"sees_images": False}
    folder = find_config_folder(find_extra(ajet["trainer_common"]["device"]))
    with _explain_errors(experiment):
        return *_lay_sections(experiment, ajet, folder), _merged_sections(experiment)


def _lay_sections(experiment: Experiment, ajet: dict[str, Any], folder: Path | None) -> tuple[DictConfig, DictConfig]:
    """Return the layers filled from the node `ajet`, and the same with the user's sections over them; unresolved."""
    from omegaconf import OmegaConf

    trainer = ajet["trainer_common"]
    known: Any = pickle.loads(_compose_shipped(folder, trainer["strategy"] == "megatron", trainer["device"] == "cpu"))
    known["ajet"] = ajet
    users = _collect_sections(experiment)
    tree: Any = OmegaConf.merge(known, OmegaConf.create(users)) if users else known
    return known, tree


def find_extra(device: str) -> str:
    """The extra that brings verl where it trains on `device`."""
    return "verl-cpu" if device == "cpu" else "verl"


def make_printable_config(experiment: Experiment, tree: dict[str, Any]) -> dict[str, Any]:
    """A copy of `verl_config`'s answer that may be printed: without values of secret names or of the environment."""
    return make_printable(tree, _merged_sections(experiment))


def _ajet_node(
    experiment: Experiment, model_folder: Path | None, run_folder: Path | None, device: str | None
) -> dict[str, Any]:
    """The typed node with nothing left that depends on the YAML's name or place, and what our layers ask of it."""
    node = experiment.settle_values()
    node["verl_layers"] = str(LAYERS)
    node["val_repeats"] = experiment.ajet.validation_repeats
    trainer = node["trainer_common"]
    algorithm = experiment.ajet.trainer_common.algorithm
    if algorithm.old_policy != "behaviour":
        trainer["algorithm"]["is_cap"] = algorithm.is_cap  # `auto` is settled by verl's mode
    if trainer["device"] == "auto" and device is not None:
        trainer["device"] = device
    # relative: a node without the project's folder has a copy of it as its working directory
    rounded = experiment.ajet.model.dtype != "float32"
    trainer["algorithm"]["mismatch_alarm"] = experiment.ajet.trainer_common.mismatch_alarm(rounded=rounded)
    for key in ("adv_estimator", "policy_loss"):
        trainer["algorithm"][key] = relativize(trainer["algorithm"][key], experiment.base)
    slots = experiment.layers.find_winner(("ajet", "trainer_common", "n_gpus_per_node"))
    if trainer["device"] == "cpu" and slots is experiment.layers.stack[0]:
        trainer["n_gpus_per_node"] = 1
    if model_folder is not None:
        node["model"]["path"] = str(model_folder)
    if run_folder is not None:
        node.update(experiment_dir=str(run_folder.parent), experiment_name=run_folder.name)
    folder = node["trainer_common"]["checkpoint_base_dir"]
    if folder:
        node["trainer_common"]["checkpoint_base_dir"] = str(Path(folder).expanduser().absolute())
    return node


def _collect_sections(experiment: Experiment) -> dict[str, Any]:
    """The user's own sections (for interpolations alone, and where verl has no such root) below verl's own."""
    sections = {name: value for name, value in experiment.sections.items() if name not in ROOTS}
    return {**sections, **_merged_sections(experiment)}


def _merged_sections(experiment: Experiment) -> dict[str, Any]:
    """`verl:` and the top-level names as one tree. Raises ConfigError for a key that both set, to different values."""
    over = experiment.backbone_overrides
    verl = over.get("verl", {})
    for name in ("verl", *TOP_LEVEL):
        if not isinstance(over.get(name, {}), dict):
            raise ConfigError(
                f"`{name}` is {over[name]!r}.",
                where=experiment.layers.locate((name,), value=True),
                expected="a mapping of verl's own keys",
            )
    for name in verl:
        if name not in ROOTS:
            near = get_close_matches(str(name), ROOTS, 1)
            raise ConfigError(
                f"verl has no root name {name!r}.",
                where=experiment.layers.locate(("verl", name)),
                expected=", ".join(ROOTS),
                do=f"did you mean verl.{near[0]}?" if near else "",
            )
    merged = deepcopy(verl)
    for name in TOP_LEVEL:
        if name in over:
            merged[name] = _join_sections(merged.get(name, {}), over[name], (name,), experiment)
    return merged


def _join_sections(one: Any, other: Any, path: tuple[str, ...], experiment: Experiment) -> Any:
    if isinstance(one, dict) and isinstance(other, dict):
        both = {
            name: _join_sections(one[name], other[name], (*path, name), experiment) for name in one if name in other
        }
        return {**one, **other, **both}
    if one == other:
        return one
    key = ".".join(path)
    raise ConfigError(
        f"{key} is {other!r} and verl.{key} is {one!r}.",
        where=" and ".join(experiment.layers.locate(each, value=True) for each in (path, ("verl", *path))),
        expected="one of the two",
    )


def read_verls_defaults() -> DictConfig:
    """Return the defaults of the installed verl for FSDP, unresolved. Raises MissingExtraError without verl, UserError
    for another version."""
    folder = find_config_folder(find_extra("auto"))
    if folder is None:
        raise MissingExtraError("verl", find_extra("auto"), needed_for="The verl backbone")
    defaults: DictConfig = compose_verls_defaults(folder, False)
    return defaults


@lru_cache(maxsize=8)
def _compose_shipped(folder: Path | None, megatron: bool, cpu: bool) -> bytes:
    """verl's `ppo_trainer` for the chosen engine (`folder`: where it lies), and our layers over it, with their
    interpolations; pickled: a copy is had from it ten times faster than from a mapping."""
    from omegaconf import OmegaConf

    names = ["verl_default", "verl_megatron" if megatron else "verl_fsdp", *(["verl_cpu"] if cpu else [])]
    verls = [] if folder is None else [compose_verls_defaults(folder, megatron)]
    ours = [OmegaConf.load(LAYERS / f"{name}.yaml") for name in names]
    return pickle.dumps(OmegaConf.merge(*verls, *ours))


@lru_cache(maxsize=4)
def compose_verls_defaults(folder: Path, megatron: bool) -> Any:
    """verl's defaults, as Hydra composes them."""
    import hydra
    from omegaconf import OmegaConf

    with _isolate_hydra(), hydra.initialize_config_dir(str(folder), job_name="ajet", version_base="1.3"):
        composed = hydra.compose("ppo_trainer", overrides=[f"model_engine={'megatron' if megatron else 'dp'}"])
    return OmegaConf.create(OmegaConf.to_container(composed, resolve=False))


def find_config_folder(extra: str) -> Path | None:
    """`verl/trainer/config`; None where verl is not installed. Raises UserError for another version."""
    spec = util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        return None
    place, installed = Path(next(iter(spec.submodule_search_locations))), metadata.version("verl")
    if installed != VERL_VERSION:
        raise UserError(
            f"verl {installed} is installed.",
            where=str(place),
            expected=f"verl {VERL_VERSION}: its config differs from version to version",
            do=format_extra_install(extra),
        )
    return place / "trainer" / "config"


@contextmanager
def _isolate_hydra() -> Iterator[None]:
    from hydra.core.global_hydra import GlobalHydra

    earlier = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = earlier


@contextmanager
def _explain_errors(experiment: Experiment) -> Iterator[None]:
    """What OmegaConf refuses within, as a ConfigError that names the place where the key is one of the user's."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except OmegaConfBaseException as error:
        key = str(error.full_key or "").replace("[", ".").replace("]", "")
        path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        layers = experiment.layers
        places = [place for place in (path, ("verl", *path)) if key and layers.find_winner(place) is not None]
        raise ConfigError(
            f"The config of verl does not compose: {key + ': ' if key else ''}{str(error).splitlines()[0]}",
            where=layers.locate(places[-1], value=True) if places else str(experiment.yaml_path),
            expected="values and interpolations of keys that exist",
        ) from error
