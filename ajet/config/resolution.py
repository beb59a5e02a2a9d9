"""Interpolations: `${ajet.data.train_batch_size}`, `${oc.env:NAME}`, and their form in written files.

Invariant: ajet and the user's sections are resolved before a run. A backbone's own config stays unresolved, because
only its own composition can resolve the interpolations. Secrets, and environment values in a user's section, are
written as their interpolation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from ajet.config.compose import Layers
from ajet.config.document import Document, KeyPath, list_leaves
from ajet.schema.errors import ConfigError
from ajet.schema.secrets import has_secret_shape, is_secret_name, replace_secret_shapes

if TYPE_CHECKING:
    from omegaconf import DictConfig

HIDDEN = "<YOUR_SECRET>"
"""Placeholder for a literal secret in written files. Loading the placeholder is refused."""
_HOLDS_SECRETS = ("secret", "secrets", "password", "passwords", "token", "tokens", "credential", "credentials")
"""Names of mappings with only secret values (`secrets: {first: …}`)."""
_CHOICES = {"true", "false", "none", "null", "no", "yes", "on", "off", "auto"}
"""Values under secret names that are choices, not secrets (`auth: basic`)."""
_CHOICES |= {"basic", "bearer", "digest", "oauth", "oauth2", "optional", "required"}
"""Values that choose a method instead of being a secret (`auth: basic`), so they are not hidden."""
_FROM_ENVIRONMENT = "\ue000from the environment\ue000"


def resolve_tree(
    composed: DictConfig, written: dict[str, Any], layers: Layers, roots: Collection[str]
) -> dict[str, Any]:
    """Return the configuration as plain values by top-level name, with interpolations resolved.

    Args:
        composed: The merged layers.
        written: The same with unresolved interpolations.
        layers: The sources, to name the place of an error.
        roots: Top-level names of backbones, which keep their interpolations.

    Raises:
        ConfigError: An interpolation cannot be resolved.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    tree: dict[str, Any] = {}
    for name in composed:
        try:
            if name in roots:
                tree[str(name)] = deepcopy(written[str(name)])
            else:
                value = composed[name]
                tree[str(name)] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        except OmegaConfBaseException as error:
            raise _make_unresolved_error(error, str(name), layers) from error
    return tree


def dump_unresolved(composed: DictConfig) -> dict[str, Any]:
    """Return the merged configuration as plain values, with every interpolation as written."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(composed, resolve=False)  # type: ignore[return-value]


def find_environment_paths(raw: dict[str, Any], backbones: Collection[str]) -> set[KeyPath]:
    """Return the paths whose values come from environment variables, directly or through other keys.

    Args:
        raw: The configuration with unresolved interpolations.
        backbones: Top-level names to leave out.
    """
    from omegaconf import OmegaConf

    marked = deepcopy({name: value for name, value in raw.items() if name not in backbones})
    direct = [path for path, value in list_leaves(marked) if isinstance(value, str) and "oc.env" in value]
    for path in direct:
        # A mark in place of the variable shows which other keys it reaches.
        _set_value(marked, path, _FROM_ENVIRONMENT)
    if not direct:
        return set()
    resolved = OmegaConf.to_container(OmegaConf.create(marked), resolve=True)
    return {path for path, value in list_leaves(resolved) if isinstance(value, str) and _FROM_ENVIRONMENT in value}


def make_writable(
    tree: dict[str, Any],
    raw: dict[str, Any],
    *,
    backbones: Collection[str],
    convert_user_text: Callable[[str], str] = str,
    hide: Callable[[str], str] = lambda secret: HIDDEN,
) -> dict[str, Any]:
    """Return a copy of the resolved configuration that may be written to a file: without secrets, and loadable again.

    Secrets, and environment values in the user's sections, become their interpolation again.

    Args:
        tree: The resolved configuration.
        raw: The same with unresolved interpolations.
        backbones: Root names of the backbones' sections, which are written with their interpolations.
        convert_user_text: Converts a text of the user's sections.
        hide: Converts a literal secret.
    """
    writable = deepcopy(tree)
    environment_paths = find_environment_paths(raw, backbones)
    for path, value in list_leaves(writable):
        is_backbone_key = path[0] in backbones
        is_secret = is_secret_path(path) and is_literal_secret(value)
        has_shape = isinstance(value, str) and has_secret_shape(value)
        if path in environment_paths and (is_secret_path(path) or has_shape or path[0] != "ajet"):
            _set_raw_value(writable, raw, path)
        elif is_secret:
            if not is_backbone_key or "${" not in str(value):
                _set_value(writable, path, hide(str(value)))
        elif isinstance(value, str):
            text = value if is_backbone_key else value.replace("${", "\\${")
            text = replace_secret_shapes(text, hide) if has_shape else text
            _set_value(writable, path, text if path[0] == "ajet" or is_backbone_key else convert_user_text(text))
    return writable


def is_secret_path(path: KeyPath) -> bool:
    """Return True if the last names of a key mark its value as secret: a secret's name, or a mapping of secrets."""
    names = [part for part in path if isinstance(part, str) and not part.isdigit()]
    if not names:
        return False
    return is_secret_name(names[-1]) or (len(names) > 1 and names[-2].lower().endswith(_HOLDS_SECRETS))


def is_literal_secret(value: Any) -> bool:
    """Return True if the value under a secret's name can be a secret.

    It is none if it is empty, a choice such as "basic", or a small number.
    """
    if isinstance(value, str):
        return value.strip().lower() not in _CHOICES | {""}
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 100_000


def hide_secrets(document: Document) -> str:
    """Return the text of a YAML with literal secrets replaced by a placeholder."""
    text = document.text
    secret_places = [
        document.places[path]
        for path, value in list_leaves(document.tree)
        if is_secret_path(path) and is_literal_secret(value) and "${" not in str(value) and path in document.places
    ]
    # From the end, so that earlier offsets stay right.
    for place in sorted(set(secret_places), key=lambda place: -place.start):
        text = f'{text[: place.start]}"{HIDDEN}"{text[place.end :]}'
    return replace_secret_shapes(text, HIDDEN)


def _set_value(tree: Any, path: KeyPath, value: Any) -> None:
    """Set the value at a path of nested mappings and lists."""
    for part in path[:-1]:
        tree = tree[part]
    tree[path[-1]] = value


def _set_raw_value(tree: Any, raw: Any, path: KeyPath) -> None:
    """Set the interpolation that the YAML has at `path`, or at the section around it that is one interpolation."""
    for index, part in enumerate(path):
        raw = raw[part]
        if isinstance(raw, str):
            _set_value(tree, path[: index + 1], raw)
            return


def _make_unresolved_error(error: Any, root: str, layers: Layers) -> ConfigError:
    """Return the user's error for an interpolation that OmegaConf cannot resolve, with the place of the key."""
    key = str(error.full_key or root)
    path = tuple(int(part) if part.isdigit() else part for part in key.replace("[", ".").replace("]", "").split("."))
    return ConfigError(
        f"The value of {key} cannot be resolved: {str(error).splitlines()[0]}.",
        where=layers.locate(path, value=True),
        expected="an interpolation of an existing key, or ${oc.env:NAME,default}",
        do="correct the name, or set the environment variable (ajet also reads a .env file next to the YAML)",
    )
