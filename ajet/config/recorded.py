"""The settings of a recorded run, read as data: for those who look at a record, which somebody else may have sent.

Invariant: reading sets no environment variable (a `.env` beside the file is not opened) and looks none up, resolves no
interpolation, composes nothing, imports nothing that the record names. Values that the run took from the environment
are not there: a key of `ajet` has its default, a key of the user's sections the interpolation as text. A record never
allows the code of a model (`model.trust_remote_code` is False). A run that is started reads its YAML with
`load_experiment` instead.
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
"""Of a recorded YAML: ajet writes some ten thousand."""
_INTERPOLATION = re.compile(r"(?<!\\)\$\{")


def read_recorded_tree(file: Path) -> dict[str, Any]:
    """The root names of a recorded YAML as written, interpolations as text. Raises ConfigError."""
    return dict(parse_document(_read_yaml(file), file).tree)


def load_recorded_experiment(file: Path) -> Experiment:
    """The experiment that a run's `resolved.yaml` tells of. Raises ConfigError."""
    document = parse_document(_read_yaml(file), file)
    parts = split_document(document, _list_backbone_roots(document.tree))
    layers = Layers((Layer("defaults", {}), Layer(file.name, document.tree, document)))
    config = validate_tree({"ajet": _unescape_values(parts.ajet)}, layers)
    config.model.trust_remote_code = False
    written = parts.ajet.get("context_tracker")
    if not isinstance(written, dict) or "escape_controls" not in written:
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
    """The dotted keys of a recorded experiment whose values the run had from its environment, or hid: they are not
    known from the record."""
    return [
        ".".join(map(str, path))
        for path, value in list_leaves(experiment.raw)
        if _is_unresolved(value) and path[0] not in experiment.backbone_overrides
    ]


def _list_backbone_roots(tree: Mapping[str, Any]) -> tuple[str, ...]:
    """The backbones' root names. Of one that comes with a package those are the user's: none is imported for it."""
    ajet = tree.get("ajet")
    name = ajet.get("backbone") if isinstance(ajet, dict) else None
    return list_backbone_roots(list_shipped_backbones().get(str(name), Descriptor("", "")))


def _read_yaml(file: Path) -> str:
    try:
        return read_record_file(file, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file.name} can't be read: {error.strerror}.", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name} is no text.", where=str(file)) from error


def _is_unresolved(value: Any) -> bool:
    """Whether a value was left to the environment."""
    return isinstance(value, str) and (value == HIDDEN or _INTERPOLATION.search(value) is not None)


def _unescape_values(tree: Any, *, keep: bool = False) -> Any:
    """Values as they were resolved; without `keep`, keys whose values are not known are left out."""
    if isinstance(tree, dict):
        return {
            name: _unescape_values(value, keep=keep)
            for name, value in tree.items()
            if keep or not _is_unresolved(value)
        }
    if isinstance(tree, list):
        return [_unescape_values(value, keep=keep) for value in tree]
    return tree.replace("\\${", "${") if isinstance(tree, str) and not _is_unresolved(tree) else tree
