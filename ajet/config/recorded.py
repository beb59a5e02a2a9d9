"""Read the settings of a recorded run as data, because the record may come from another person.

Invariant: reading sets and looks up no environment variable, resolves no interpolation, composes no layers, and imports
no code of the record. Values from the run's environment are absent: a key of `ajet` has its default, a key of the
user's sections the interpolation as text. `model.trust_remote_code` is always False. A started run reads its YAML with
`load_experiment`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet.config.backbones import Descriptor, list_shipped_backbones
from ajet.config.compose import Layer, Layers
from ajet.config.document import list_leaves, parse_document
from ajet.config.experiment import Experiment
from ajet.config.record_file import read_record_file
from ajet.config.resolution import HIDDEN
from ajet.config.shapes import list_backbone_roots, split_document
from ajet.config.validate import validate_tree
from ajet.schema.errors import ConfigError

MOST_BYTES = 4 << 20
"""Limit on the size of a recorded YAML. ajet writes about ten thousand bytes."""
_INTERPOLATION = re.compile(r"(?<!\\)\$\{")


def read_recorded_tree(file: Path) -> dict[str, Any]:
    """Return the settings in a recorded YAML by top-level name, with interpolations as text.

    Raises:
        ConfigError: The file cannot be read or parsed.
    """
    return dict(parse_document(_read_yaml(file), file).tree)


def load_recorded_experiment(file: Path) -> Experiment:
    """Return the experiment that a run's `resolved.yaml` records, without running any code of it.

    Raises:
        ConfigError: The file cannot be read, or a value is invalid.
    """
    document = parse_document(_read_yaml(file), file)
    parts = split_document(document, _list_backbone_roots(document.tree))
    layers = Layers((Layer("defaults", {}), Layer(file.name, document.tree, document)))
    config = validate_tree({"ajet": _unescape_values(parts.ajet)}, layers)
    config.model.trust_remote_code = False
    tracker_settings = parts.ajet.get("context_tracker")
    if not isinstance(tracker_settings, dict) or "escape_controls" not in tracker_settings:
        config.context_tracker.escape_controls = (
            "none"  # recorded by a version that had no such key, and escaped nothing
        )
    folder = file.absolute().parent
    return Experiment(
        ajet=config,
        sections=_unescape_values(parts.sections, keep=True),
        backbone_overrides=parts.backbone,
        name=folder.name,
        yaml_path=file.absolute(),
        yaml_text=document.text,
        overrides=(),
        base=(folder / config.base_dir).resolve() if config.base_dir else folder,
        root=folder.parent,
        layers=layers,
        raw=document.tree,
    )


def list_unknown_values(experiment: Experiment) -> list[str]:
    """Return the dotted keys whose values are unknown, because they came from the run's environment or are secret."""
    return [
        ".".join(map(str, path))
        for path, value in list_leaves(experiment.raw)
        if _is_unresolved(value) and path[0] not in experiment.backbone_overrides
    ]


def _list_backbone_roots(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the top-level names that belong to backbones.

    A backbone of another distribution is not imported, so its sections count as the user's.
    """
    ajet = tree.get("ajet")
    name = ajet.get("backbone") if isinstance(ajet, dict) else None
    return list_backbone_roots(list_shipped_backbones().get(str(name), Descriptor("", "")))


def _read_yaml(file: Path) -> str:
    """Return the text of a recorded YAML. Raise ConfigError if it is unreadable, too large or no text."""
    try:
        return read_record_file(file, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file.name} cannot be read: {error.strerror}.", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name} is not a text file.", where=str(file)) from error


def _is_unresolved(value: Any) -> bool:
    """Return True if a recorded value is unknown: an interpolation, or the placeholder of a secret."""
    return isinstance(value, str) and (value == HIDDEN or _INTERPOLATION.search(value) is not None)


def _unescape_values(tree: Any, *, keep: bool = False) -> Any:
    """Return the recorded settings with `\\${` in texts replaced by `${`. Unknown values are left out unless `keep`."""
    if isinstance(tree, dict):
        return {
            name: _unescape_values(value, keep=keep)
            for name, value in tree.items()
            if keep or not _is_unresolved(value)
        }
    if isinstance(tree, list):
        return [_unescape_values(value, keep=keep) for value in tree]
    return tree.replace("\\${", "${") if isinstance(tree, str) and not _is_unresolved(tree) else tree
