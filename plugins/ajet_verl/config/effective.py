"""The settings that take effect in verl, under the names by which the user wrote them.

Invariant: a setting has one effective value (the user's `verl:` section before values mapped from ajet's keys), one
name known to the user, and one place, as file:line or the name of an override.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet.config.compose import ABSENT, Layer, Layers
from ajet.config.document import KeyPath
from ajet.config.idle import list_user_layers, locate_key
from ajet.config.unread_sections import find_unread_keys
from ajet.engine.model_limits import ModelLimits
from ajet.schema.errors import ConfigError
from ajet_verl.descriptor import VERL

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.config.experiment import Experiment

ACTOR, ROLLOUT, TRAINER = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "trainer_common"
"""Key prefixes: two sections of verl's config, and one section below `ajet`."""
Pairs = tuple[tuple[str, str], ...]
"""Pairs of a verl key and its source key below `ajet`."""
MACHINES: Pairs = (
    ("trainer.nnodes", f"{TRAINER}.nnodes"),
    ("trainer.n_gpus_per_node", f"{TRAINER}.n_gpus_per_node"),
)
ULYSSES = (f"{ACTOR}.ulysses_sequence_parallel_size", f"{TRAINER}.ulysses_sequence_parallel_size")
MEGATRON_SIZES: Pairs = tuple(
    (f"{ACTOR}.megatron.{name}", f"{TRAINER}.megatron.{name}")
    for name in (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
    )
)
"""Megatron's parallel sizes. The product of the first three is the number of GPUs of one copy of the model."""


def find_own(layers: Layers, verl: KeyPath) -> tuple[Layer, KeyPath] | None:
    """Find where the user set a verl key, in its own section or below `verl:`.

    Returns:
        The last config layer that sets the key, and the key's path in it, or None if the user did not set it.
    """
    possible_paths = [("verl", *verl)]
    if verl[0] in VERL.roots:
        possible_paths.insert(0, verl)
    for layer in reversed(layers.stack):
        for path in possible_paths:
            if layer.get_value(path) is not ABSENT:
                return layer, path
    return None


class EffectiveSettings:
    """Gives the effective value of each verl key, and the name under which the user knows it.

    The name is verl's own key if the user set it, else the key below `ajet` that is mapped to it.

    Args:
        tree: verl's config, composed from ajet's layers and the user's sections.
        model: facts known about the model.
        gpu_bytes: memory of one GPU, or None if unknown.
    """

    def __init__(
        self, experiment: Experiment, tree: DictConfig, model: ModelLimits, gpu_bytes: int | None = None
    ) -> None:
        """Store the experiment and its composed verl config."""
        self.ajet = experiment.ajet
        self.layers = experiment.layers
        self.model = model
        self._tree = tree
        self._yaml_path = experiment.yaml_path
        self.gpu_bytes = gpu_bytes

    def value(self, verl: str, default: Any = None) -> Any:
        """Return the effective value of a verl key, or `default` if unset."""
        from omegaconf import OmegaConf

        value = OmegaConf.select(self._tree, verl)
        return default if value is None else value

    def count(self, verl: str, default: int = 1) -> int:
        """Return the value of an integer key.

        Raises:
            ConfigError: the value is no integer.
        """
        number = self.value(verl, default)
        if isinstance(number, int) and not isinstance(number, bool):
            return number
        raise self.make_error(f"{self.name(verl)} is {number!r}.", verl, expected="a whole number")

    def name(self, verl: str, *ajet: str) -> str:
        """Return verl's key if set by the user, else its source keys below `ajet`."""
        users_path = self._find_own_path(verl)
        return ".".join(users_path) if users_path else " and ".join(f"ajet.{key}" for key in ajet)

    def make_error(
        self, what: str, verl: str, *ajet: str, also: Pairs = (), expected: str = "", do: str = ""
    ) -> ConfigError:
        """Build an error that names the place where the last of the involved settings was set.

        Args:
            what: the problem.
            verl: the verl key of the setting, or "" if it exists only below `ajet`.
            ajet: the keys below `ajet` that determine it.
            also: further settings involved in the problem.
            expected: values that would be accepted.
            do: advice to the user.
        """
        users_path = self._find_own_path(verl) if verl else None
        paths = [users_path] if users_path else [("ajet", *key.split(".")) for key in ajet]
        paths += [self._find_own_path(verl_key) or ("ajet", *ajet_key.split(".")) for verl_key, ajet_key in also]
        # Keys that ajet does not read may be what the user meant to set: their advice is added.
        last_path = max(paths, key=self._find_layer)
        unread_key_advice = [
            f"{'.'.join(key.path)} ({locate_key(key.layer, key.path)}): {key.advice}"
            for key in find_unread_keys(list_user_layers(self.layers))
            if key.ours.removeprefix("ajet.") in ajet
        ]
        do = "; ".join([*([do] if do else []), *unread_key_advice])
        location = self.layers.locate(last_path, value=True)
        if self.layers.find_winner(last_path) not in list_user_layers(
            self.layers
        ):  # a default: users do not edit the file of defaults
            location = f"{self._yaml_path}, which does not set {'.'.join(last_path)}"
        return ConfigError(what, where=location, expected=expected, do=do)

    def _find_layer(self, path: tuple[str, ...]) -> int:
        """Return the index of the config layer that decides a key's value, or -1 if no layer sets the key."""
        layer = self.layers.find_winner(path)
        return self.layers.stack.index(layer) if layer is not None else -1

    def _find_own_path(self, verl: str) -> tuple[str, ...] | None:
        """Return the key's path in the user's YAML or overrides if the user set this verl key, else None."""
        layer_and_path = find_own(self.layers, tuple(verl.split(".")))
        return layer_and_path[1] if layer_and_path else None

    @property
    def gpus(self) -> int:
        """Number of training GPUs on all nodes."""
        return self.count("trainer.nnodes") * self.count("trainer.n_gpus_per_node")

    @property
    def is_megatron(self) -> bool:
        """True if Megatron trains, False for FSDP."""
        return self.value("actor_rollout_ref.actor.strategy") == "megatron"

    @property
    def model_parallel(self) -> int:
        """Number of GPUs that together compute one copy of the model."""
        sizes = MEGATRON_SIZES[:3] if self.is_megatron else (ULYSSES,)
        product = 1
        for verl, _ in sizes:
            product *= self.count(verl)
        return product
