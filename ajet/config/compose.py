"""Composition: our defaults, the chosen backbone's layer, the user's YAML and the overrides, in this order, by Hydra.

Invariant: later layers win; only the chosen backbone's layer is read; nothing depends on the working directory; Hydra's
global state is left as it was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.document import Document, KeyPath, read_document
from ajet.config.locations import default_config
from ajet.config.overrides import Override
from ajet.config.shapes import Parts
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

ABSENT: Any = object()
"""What `Layer.value` answers for a key that the layer does not hold."""
_BACKBONE, _USER, _ROOT = "ajet_backbones_layer", "ajet_users_yaml", "ajet_experiment"


@dataclass(frozen=True)
class Layer:
    """One source of values: a file, a flag or an override. Its tree has the root names of the composed tree."""

    title: str
    tree: dict[Any, Any] = field(repr=False)
    document: Document | None = field(default=None, repr=False)

    def value(self, path: KeyPath) -> Any:
        """What the layer says of a key, as written; ABSENT when it says nothing."""
        node: Any = self.tree
        for part in path:
            if not isinstance(node, dict) or part not in node:
                return ABSENT
            node = node[part]
        return node

    def where(self, path: KeyPath, *, value: bool = False) -> str:
        """file:line:column, or the override itself."""
        return self.document.where(path, value=value) if self.document else self.title


@dataclass(frozen=True)
class Layers:
    """All layers of an experiment, first to last."""

    stack: tuple[Layer, ...]

    def winner(self, path: KeyPath) -> Layer | None:
        """The last layer that holds the key, or else its nearest ancestor."""
        while path:
            for layer in reversed(self.stack):
                if layer.value(path) is not ABSENT:
                    return layer
            path = path[:-1]
        return None

    def where(self, path: KeyPath, *, value: bool = False) -> str:
        """Where the value of a key was set."""
        layer = self.winner(path)
        return layer.where(path, value=value) if layer else ".".join(map(str, path))


def collect_layers(
    document: Document, parts: Parts, overrides: Sequence[Override], *, backbone: Path | None, flag: str | None
) -> Layers:
    """The layers in order; `backbone` is the chosen one's, `flag` what `--backbone` says."""
    stack = []
    for path in [default_config() / "ajet_default.yaml", *([backbone] if backbone else [])]:
        defaults = _defaults(path)
        stack.append(Layer(defaults.path.name, defaults.tree, defaults))
    users = {"ajet": without_empty_sections(parts.ajet, document), **parts.sections, **parts.backbone}
    stack.append(Layer(document.path.name, users, document))
    if flag is not None:
        stack.append(Layer(f"--backbone {flag}", {"ajet": {"backbone": flag}}))
    stack += [Layer(f"override {each.written}", _nested(each.path, each.value)) for each in overrides]
    return Layers(tuple(stack))


@lru_cache(maxsize=8)
def _defaults(path: Path) -> Document:
    """A file that ships with ajet: it stays as it is, and is read once."""
    return read_document(path)


def compose(layers: Layers, overrides: Sequence[Override], *, backbone: Path | None, flag: str | None) -> DictConfig:
    """One tree, interpolations unresolved. Raises ConfigError for what Hydra or OmegaConf refuse."""
    import hydra
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    users = [layer for layer in layers.stack if layer.document is not None][-1]
    defaults = ["ajet_default", *([_BACKBONE] if backbone else []), _USER, "_self_"]
    texts = [f"++ajet.backbone={flag}"] if flag is not None else []
    texts += [each.composed for each in overrides]
    earlier = GlobalHydra.instance().hydra
    store = ConfigStore.instance()
    try:
        if backbone:
            store.store(name=_BACKBONE, node=OmegaConf.create(deepcopy(_defaults(backbone).tree)))
        store.store(name=f"{_USER}", node=OmegaConf.create(deepcopy(users.tree)))
        store.store(name=f"{_ROOT}", node={"defaults": defaults})
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(str(default_config()), job_name="ajet", version_base="1.3"):
            return hydra.compose(_ROOT, overrides=texts)
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error, layers) from error
    finally:
        for name in (_BACKBONE, _USER, _ROOT):
            store.repo.pop(f"{name}.yaml", None)
        GlobalHydra.instance().hydra = earlier


def without_empty_sections(tree: dict[Any, Any], document: Document) -> dict[Any, Any]:
    """`rollout:` with nothing below it says nothing; as a null it would erase the defaults. Raises ConfigError for a
    section that is no mapping."""
    from ajet.config.keys import find_key
    from ajet.config.validate import keys_of

    def cleaned(node: dict[Any, Any], path: KeyPath) -> dict[Any, Any]:
        kept: dict[Any, Any] = {}
        for name, value in node.items():
            here = (*path, name)
            section = find_key(here)
            if not isinstance(section, type) or (isinstance(value, str) and "${" in value):
                kept[name] = value
            elif isinstance(value, dict):
                kept[name] = cleaned(value, here)
            elif value is not None:
                raise ConfigError(
                    f"ajet.{'.'.join(here)} is {value!r}.",
                    where=document.where(("ajet", *here), value=True),
                    expected=keys_of(section),
                    do=f"write `{name}: {{{next(iter(section.model_fields))}: {value}}}`, or the key that you mean",
                )
        return kept

    return cleaned(tree, ())


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {path[-1]: value}
    for name in reversed(path[:-1]):
        tree = {name: tree}
    return tree


def _explained(error: Exception, layers: Layers) -> ConfigError:
    """Name the place: the string that does not parse as an interpolation, or the override that Hydra refuses."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for layer in layers.stack:
        for path, value in leaves(layer.tree):
            if isinstance(value, str) and "${" in value:
                try:
                    OmegaConf.create({"value": value})
                except OmegaConfBaseException as refusal:
                    return ConfigError(
                        f"{'.'.join(map(str, path))}: {value!r} is no interpolation: {str(refusal).splitlines()[0]}",
                        where=layer.where(path, value=True),
                        expected="${ajet.data.train_batch_size}, ${oc.env:NAME} or ${oc.env:NAME,default}",
                    )
    cause = error.__cause__ or error
    return ConfigError(
        f"The config does not compose: {' '.join(str(error).split())}",
        where="command line" if "override" in str(error) else layers.stack[-1].title,
        do="a key that does not exist yet is added by +key=value" if "struct" in f"{error}{cause}" else "",
    )


def leaves(tree: Any, path: KeyPath = ()) -> list[tuple[KeyPath, Any]]:
    """Every value that is no mapping or list, with its path."""
    if isinstance(tree, dict):
        return [leaf for name, value in tree.items() for leaf in leaves(value, (*path, name))]
    if isinstance(tree, list):
        return [leaf for index, value in enumerate(tree) for leaf in leaves(value, (*path, index))]
    return [(path, tree)]
