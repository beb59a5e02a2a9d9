"""Interpolations: `${ajet.data.train_batch_size}`, `${oc.env:NAME}`, and what may be written down of them.

Invariant: ajet and the user's own sections are fully resolved before a run; a backbone's own config keeps its
interpolations, since only that backbone's composition knows all they refer to. Values that came from the environment
into a user's section, or are secret (`ajet.schema.secrets`), are written as the interpolation they came from.
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
"""Stands for a literal secret in whatever is written; loading it again is refused as a placeholder."""
_HOLDS_SECRETS = ("secret", "secrets", "password", "passwords", "token", "tokens", "credential", "credentials")
"""A mapping of such a name (`secrets: {first: …}`) is secret in all its values."""
_CHOICES = {"true", "false", "none", "null", "no", "yes", "on", "off", "auto"}
_CHOICES |= {"basic", "bearer", "digest", "oauth", "oauth2", "optional", "required"}
"""What stands under such names to choose something (`auth: basic`)."""
_FROM_ENVIRONMENT = "\ue000from the environment\ue000"


def resolve_tree(
    composed: DictConfig, written: dict[str, Any], layers: Layers, roots: Collection[str]
) -> dict[str, Any]:
    """All root names as plain values, but the backbones' (`roots`) as `written`. Raises ConfigError."""
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
    """The tree with every interpolation as written."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(composed, resolve=False)  # type: ignore[return-value]


def find_environment_paths(raw: dict[str, Any], backbones: Collection[str]) -> set[KeyPath]:
    """The paths whose value depends on an environment variable, directly or through other keys; none below the root
    names `backbones`."""
    from omegaconf import OmegaConf

    marked = deepcopy({name: value for name, value in raw.items() if name not in backbones})
    direct = [path for path, value in list_leaves(marked) if isinstance(value, str) and "oc.env" in value]
    for path in direct:
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
    own: Callable[[str], str] = str,
    hide: Callable[[str], str] = lambda secret: HIDDEN,
) -> dict[str, Any]:
    """A copy of `tree` (resolved) that may be written to a file: see the module's invariant. `backbones`: the root
    names of backbones' own sections; `own`: what a text of the user's own sections is written as, besides; `hide`: what
    a literal secret is."""
    shown = deepcopy(tree)
    tainted = find_environment_paths(raw, backbones)
    for path, value in list_leaves(shown):
        as_written = path[0] in backbones
        named = is_secret_path(path) and is_literal_secret(value)
        shaped = isinstance(value, str) and has_secret_shape(value)
        if path in tainted and (is_secret_path(path) or shaped or path[0] != "ajet"):
            _set_raw_value(shown, raw, path)
        elif named:
            if not as_written or "${" not in str(value):
                _set_value(shown, path, hide(str(value)))
        elif isinstance(value, str):
            text = value if as_written else value.replace("${", "\\${")
            text = replace_secret_shapes(text, hide) if shaped else text
            _set_value(shown, path, text if path[0] == "ajet" or as_written else own(text))
    return shown


def is_secret_path(path: KeyPath) -> bool:
    """Whether what lies at this path must not be shown, by the names that lead there."""
    names = [part for part in path if isinstance(part, str) and not part.isdigit()]
    if not names:
        return False
    return is_secret_name(names[-1]) or (len(names) > 1 and names[-2].lower().endswith(_HOLDS_SECRETS))


def is_literal_secret(value: Any) -> bool:
    """Whether a value under the name of a secret is one, and not empty, a choice, or a small number."""
    if isinstance(value, str):
        return value.strip().lower() not in _CHOICES | {""}
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 100_000


def hide_secrets(document: Document) -> str:
    """The document's text as given, but for literal secrets."""
    text = document.text
    literal = [
        document.places[path]
        for path, value in list_leaves(document.tree)
        if is_secret_path(path) and is_literal_secret(value) and "${" not in str(value) and path in document.places
    ]
    for place in sorted(set(literal), key=lambda place: -place.start):
        text = f'{text[: place.start]}"{HIDDEN}"{text[place.end :]}'
    return replace_secret_shapes(text, HIDDEN)


def _set_value(tree: Any, path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        tree = tree[part]
    tree[path[-1]] = value


def _set_raw_value(tree: Any, raw: Any, path: KeyPath) -> None:
    """Put what was written at `path`, or at the ancestor that is one interpolation as a whole."""
    for index, part in enumerate(path):
        raw = raw[part]
        if isinstance(raw, str):
            _set_value(tree, path[: index + 1], raw)
            return


def _make_unresolved_error(error: Any, root: str, layers: Layers) -> ConfigError:
    key = str(error.full_key or root)
    path = tuple(int(part) if part.isdigit() else part for part in key.replace("[", ".").replace("]", "").split("."))
    return ConfigError(
        f"{key} can't be resolved: {str(error).splitlines()[0]}.",
        where=layers.locate(path, value=True),
        expected="an interpolation of a key that exists, or ${oc.env:NAME,default}",
        do="mend the name, or set the variable (a .env file beside the YAML is read)",
    )
