"""Merges the layers of a configuration: ajet's defaults, the backbone's, the preset, the user's YAML and overrides.

Invariant: later layers win. Only the chosen backbone's layer is read. The working directory has no effect, and Hydra's
global state is restored. Without interpolations and with plain values only, layers are merged directly in a tenth of
the time. A failing merge falls back to Hydra for the error text. tests/config/test_shapes.py compares both ways.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.document import Document, KeyPath, list_leaves, read_document
from ajet.config.locations import find_default_config
from ajet.config.overrides import Override
from ajet.config.shapes import YamlParts
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

ABSENT: Any = object()
"""Result of `Layer.get_value` for a key missing from the layer."""
_SHIPPED, _USER, _ROOT = "ajet_shipped_layer", "ajet_users_yaml", "ajet_experiment"


@dataclass(frozen=True)
class Layer:
    """One source of configuration values: a file, a flag or an override.

    `tree` has the same root names as the composed configuration.
    """

    title: str
    tree: dict[Any, Any] = field(repr=False)
    document: Document | None = field(default=None, repr=False)

    def get_value(self, path: KeyPath) -> Any:
        """Return the value of a key as this layer writes it, or ABSENT if the layer does not set it."""
        node: Any = self.tree
        for part in path:
            if not isinstance(node, dict) or part not in node:
                return ABSENT
            node = node[part]
        return node

    def locate(self, path: KeyPath, *, value: bool = False) -> str:
        """Return where this layer sets a key: file:line:column, or the flag or override itself.

        Args:
            value: True for the place of the value instead of the key's.
        """
        return self.document.locate(path, value=value) if self.document else self.title


@dataclass(frozen=True)
class Layers:
    """All configuration layers of an experiment, from first to last. Later ones win."""

    stack: tuple[Layer, ...]

    def find_winner(self, path: KeyPath) -> Layer | None:
        """Return the last layer that sets the key, else the last one that sets a section around it, or None."""
        while path:
            for layer in reversed(self.stack):
                if layer.get_value(path) is not ABSENT:
                    return layer
            path = path[:-1]
        return None

    def locate(self, path: KeyPath, *, value: bool = False) -> str:
        """Return where a key's value was set, or the key itself if no layer sets it.

        Args:
            value: True for the place of the value instead of the key's.
        """
        layer = self.find_winner(path)
        return layer.locate(path, value=value) if layer else ".".join(map(str, path))


def collect_layers(
    document: Document, parts: YamlParts, overrides: Sequence[Override], *, chosen: Sequence[Path], flag: str | None
) -> Layers:
    """Return all configuration layers, from the lowest to the highest precedence.

    Args:
        document: The user's YAML.
        parts: The YAML's content, split by owner.
        overrides: The overrides of the command line.
        chosen: Files of the backbone's layer and the preset.
        flag: Value of `--backbone`.
    """
    stack = []
    for path in [find_default_config() / "ajet_default.yaml", *chosen]:
        defaults = _read_shipped_file(path)
        stack.append(Layer(defaults.path.name, defaults.tree, defaults))
    user_tree = {"ajet": remove_empty_sections(parts.ajet, document), **parts.sections, **parts.backbone}
    stack.append(Layer(document.path.name, user_tree, document))
    if flag is not None:
        stack.append(Layer(f"--backbone {flag}", {"ajet": {"backbone": flag}}))
    stack += [
        Layer(f"override {override.written}", _nest_value(override.path, override.value)) for override in overrides
    ]
    return Layers(tuple(stack))


@lru_cache(maxsize=8)
def _read_shipped_file(path: Path) -> Document:
    """Return the parsed content of a YAML that ships with ajet, from a cache."""
    return read_document(path)


def compose(layers: Layers, overrides: Sequence[Override], *, chosen: Sequence[Path], flag: str | None) -> DictConfig:
    """Merge the layers to one tree, with interpolations not yet resolved.

    Plain values are merged directly, in a tenth of Hydra's time. Hydra merges the rest, and what the direct way
    refuses.

    Args:
        chosen: Files of the backbone's layer and the preset.
        flag: Value of `--backbone`.

    Raises:
        ConfigError: Hydra or OmegaConf refuses the input.
    """
    from omegaconf.errors import OmegaConfBaseException

    for position, override in enumerate(overrides):
        _require_place(override, layers.stack[: len(layers.stack) - len(overrides) + position])
    texts = [
        *(str(leaf) for _, leaf in list_leaves(_find_user_layer(layers).tree)),
        *(override.composed for override in overrides),
    ]
    if all(override.composed.startswith("++") for override in overrides) and not any("${" in text for text in texts):
        with suppress(OmegaConfBaseException):
            return merge_layers(layers, overrides, chosen=chosen, flag=flag)
    return compose_by_hydra(layers, overrides, chosen=chosen, flag=flag)


def _require_place(override: Override, lower_layers: Sequence[Layer]) -> None:
    """Raise ConfigError for an override into a list without a valid index, on which OmegaConf fails.

    Args:
        before: Layers below the override.
    """
    for layer in reversed(lower_layers):
        node: Any = layer.tree
        for depth, part in enumerate(override.path):
            if isinstance(node, list):
                if str(part).isdecimal() and int(part) < len(node):
                    node = node[int(part)]
                    continue
                key = ".".join(map(str, override.path[:depth]))
                valid_keys = f"{key}.0 to {key}.{len(node) - 1}, or " if node else ""
                raise ConfigError(
                    f"{key} is a list, and {part} is not an index of it.",
                    where=f"override {override.written}",
                    expected=f"{valid_keys}the whole list: {key}=[…]",
                )
            if not isinstance(node, dict) or part not in node:
                break
            node = node[part]
        else:
            return


def merge_layers(
    layers: Layers, overrides: Sequence[Override], *, chosen: Sequence[Path], flag: str | None
) -> DictConfig:
    """Merge the layers in order, without Hydra. Raises OmegaConfBaseException for what OmegaConf refuses.

    Args:
        chosen: Files of the backbone's layer and the preset.
        flag: Value of `--backbone`.
    """
    from omegaconf import OmegaConf

    tree: DictConfig = pickle.loads(_pickle_shipped_layers(tuple(chosen)))
    tree.merge_with(OmegaConf.create(deepcopy(_find_user_layer(layers).tree)))
    OmegaConf.set_struct(tree, True)
    values = [("ajet.backbone", flag)] if flag is not None else []
    for key, value in [*values, *((".".join(override.path), override.value) for override in overrides)]:
        OmegaConf.update(tree, key, value, merge=True, force_add=True)
    return tree


@lru_cache(maxsize=8)
def _pickle_shipped_layers(chosen: tuple[Path, ...]) -> bytes:
    """Return the merged layers that ship with ajet as a pickle. Unpickling it is ten times faster than merging."""
    from omegaconf import OmegaConf

    files = [find_default_config() / "ajet_default.yaml", *chosen]
    return pickle.dumps(OmegaConf.merge(*(OmegaConf.create(_read_shipped_file(file).tree) for file in files)))


def _find_user_layer(layers: Layers) -> Layer:
    """Return the layer of the user's YAML: the last one with a document."""
    return [layer for layer in layers.stack if layer.document is not None][-1]


def compose_by_hydra(
    layers: Layers, overrides: Sequence[Override], *, chosen: Sequence[Path], flag: str | None
) -> DictConfig:
    """Merge the layers by Hydra, for interpolations and for the error text of what cannot be merged.

    Args:
        chosen: Files of the backbone's layer and the preset.
        flag: Value of `--backbone`.

    Raises:
        ConfigError: Hydra or OmegaConf refuses the input.
    """
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config_names = {f"{_SHIPPED}_{number}": path for number, path in enumerate(chosen)}
    defaults = ["ajet_default", *config_names, _USER, "_self_"]
    override_texts = [f"++ajet.backbone={flag}"] if flag is not None else []
    override_texts += [override.composed for override in overrides]
    previous_hydra = GlobalHydra.instance().hydra
    store = ConfigStore.instance()
    try:
        for name, path in config_names.items():
            store.store(name=name, node=OmegaConf.create(deepcopy(_read_shipped_file(path).tree)))
        store.store(name=f"{_USER}", node=OmegaConf.create(deepcopy(_find_user_layer(layers).tree)))
        store.store(name=f"{_ROOT}", node={"defaults": defaults})
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(str(find_default_config()), job_name="ajet", version_base="1.3"):
            return hydra.compose(_ROOT, overrides=override_texts)
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain_refusal(error, layers) from error
    finally:
        for name in (*config_names, _USER, _ROOT):
            store.repo.pop(f"{name}.yaml", None)
        # A program that uses Hydra itself finds its state again.
        GlobalHydra.instance().hydra = previous_hydra


def remove_empty_sections(tree: dict[Any, Any], document: Document) -> dict[Any, Any]:
    """Return the tree without empty sections, because `rollout:` without keys is null and would erase the defaults.

    Raises:
        ConfigError: A section is no mapping.
    """
    from ajet.config.keys import describe_keys, find_key

    def remove_empty(node: dict[Any, Any], path: KeyPath) -> dict[Any, Any]:
        """Return the section at `path` below `ajet` without empty sections."""
        result: dict[Any, Any] = {}
        for name, value in node.items():
            key_path = (*path, name)
            section = find_key(key_path)
            if not isinstance(section, type) or (isinstance(value, str) and "${" in value):
                result[name] = value
            elif isinstance(value, dict):
                result[name] = remove_empty(value, key_path)
            elif value is not None:
                raise ConfigError(
                    f"ajet.{'.'.join(key_path)} is {value!r}.",
                    where=document.locate(("ajet", *key_path), value=True),
                    expected=describe_keys(section),
                    do=f"write `{name}: {{{next(iter(section.model_fields))}: {value}}}`, or the key that you mean",
                )
        return result

    return remove_empty(tree, ())


def _nest_value(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return the nested mappings that hold a value at a path: {"a": {"b": value}} for the path ("a", "b")."""
    tree: dict[str, Any] = {path[-1]: value}
    for name in reversed(path[:-1]):
        tree = {name: tree}
    return tree


def _explain_refusal(error: Exception, layers: Layers) -> ConfigError:
    """Return the user's error for layers that Hydra or OmegaConf cannot merge.

    The error names the place of an invalid interpolation if there is one, else it has the text of the exception.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for layer in layers.stack:
        for path, value in list_leaves(layer.tree):
            if isinstance(value, str) and "${" in value:
                try:
                    OmegaConf.create({"value": value})
                except OmegaConfBaseException as refusal:
                    return ConfigError(
                        f"{'.'.join(map(str, path))}: {value!r} is not an interpolation: "
                        f"{str(refusal).splitlines()[0]}",
                        where=layer.locate(path, value=True),
                        expected="${ajet.data.train_batch_size}, ${oc.env:NAME} or ${oc.env:NAME,default}",
                    )
    cause = error.__cause__ or error
    return ConfigError(
        f"YAML and overrides cannot be combined: {' '.join(str(error).split())}",
        where="command line" if "override" in str(error) else layers.stack[-1].title,
        do="to add a key that does not exist yet, write +key=value" if "struct" in f"{error}{cause}" else "",
    )
