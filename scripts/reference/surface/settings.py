"""YAML keys with types and defaults, names of parts, and the files that lie beside an experiment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ajet.config.backbones import list_shipped_backbones
from ajet.config.plugin import GROUP, NAMED_KINDS, load_code
from ajet.config.plugins import find_parts, list_first_names
from ajet.config.schema.accepted import ACCEPTED, FIXED, MOVED, OLDER_READERS
from ajet.config.schema.agentrl import HERE, NOT_HERE
from ajet.config.schema.extended import config_model
from ajet.config.validate import describe_expected
from ajet.engine.embedded import embedded_names
from ajet.task_reader.rows import ANSWER_COLUMNS, ID_COLUMNS, QUERY_COLUMNS

_OTHER_FILES = {
    "environment file": "ajet_environments.deployment.description:_File",
    "environment file, mcpServers.NAME": "ajet_environments.deployment.description:_Terms",
    "mcpServers.NAME": "ajet_mcp.servers:_Entry",
    "agent_config, browse_agent": "ajet_mcp.browse.agent_config:BrowseAgent",
    "agent_config, scorer_agent": "ajet_judges.model_judge.settings:ScorerAgent",
    "command_agent": "ajet_command.settings:CommandSettings",
    "container": "ajet_containers.settings:ContainerSettings",
    "verifiers": "ajet_verifiers.settings:VerifiersSettings",
}
"""Models of files and sections that the experiment's YAML does not hold under `ajet:`, and where each is defined."""


def list_keys(root: Path) -> Iterator[str]:
    """Yield every key under `ajet:`, those of mappings by name and of lists included."""
    yield from _list_model("ajet", config_model(shipped=True))


def list_accepted_keys(root: Path) -> Iterator[str]:
    """Yield the keys of other versions' YAMLs that are understood."""
    for name in ACCEPTED:
        yield f"ajet.{name}: accepted without effect"
    for name, unchanged in FIXED.items():
        yield f"ajet.{name}: accepted at {json.dumps(unchanged.value)}"
    for name, ours in MOVED.items():
        yield f"ajet.{name}: another name of ajet.{ours}"
    yield from (f"AgentRL's {name}: refused with advice" for name in (*HERE, *NOT_HERE))
    yield from ("hydra.searchpath: file://ajet/default_config and its folders", "defaults: understood and set aside")
    for name, ours in OLDER_READERS.items():
        yield f"ajet.task_reader.type {name}: another name of {ours}"


def list_parts(root: Path) -> Iterator[str]:
    """Yield the names that a YAML may give to a part of a kind, and the entry points by which packages add some."""
    for kind in NAMED_KINDS:
        if kind not in ("backbone", "train_engine", "environment_file", "environment_family"):
            for name, part in find_parts(kind).items():
                reads = f": reads {', '.join(part.variables)}" if part.variables else ""
                yield f"{kind.replace('reader', 'task reader')} {name}{reads}"
    for name, backbone in list_shipped_backbones().items():
        yield f"backbone {name}: can {', '.join(sorted(backbone.can))}"
        yield from (f"backbone {name}: top-level key {each}" for each in backbone.roots)
        yield from (f"backbone {name}: no effect of ajet.{each}" for each, why in backbone.idle.items() if why)
    yield f"entry point group {GROUP}"
    yield from (f"model embedded:{name}" for name in embedded_names())


def list_other_files(root: Path) -> Iterator[str]:
    """Yield the keys of files and sections beside `ajet:`."""
    for title, place in _OTHER_FILES.items():
        module, _, name = place.partition(":")
        yield from _list_model(f"{title}:", getattr(import_module(module), name), " ")
    for field, columns in {"question": QUERY_COLUMNS, "id": ID_COLUMNS, "answer": ANSWER_COLUMNS}.items():
        yield f"task file: {field} is the first of {', '.join(columns)}"
    for name, part in find_parts("environment_family").items():
        yield from _list_model(f"environment file: {name}", load_code(part.code).section)
    yield from (f"environment that comes with ajet: {name}" for name in list_first_names("environment_file"))


def list_layers(root: Path) -> Iterator[str]:
    """Yield each value of the layers in default_config and plug-ins but those of the schema's own file."""
    for folder, pattern in ((root / "default_config", "**/*.y*ml"), (root / "plugins", "*/layers/*.yaml")):
        for file in sorted(folder.glob(pattern)):
            if file.name != "ajet_default.yaml":
                content = yaml.safe_load(file.read_text(encoding="utf-8"))
                yield from (f"{file.relative_to(folder)}: {line}" for line in _list_leaves("", content))


def _list_leaves(path: str, node: Any) -> Iterator[str]:
    if isinstance(node, dict) and node:
        for name, each in node.items():
            yield from _list_leaves(f"{path}.{name}" if path else str(name), each)
    else:
        yield f"{path} = {json.dumps(node, ensure_ascii=False)}"


def _list_model(path: str, model: type[BaseModel], joined: str = ".") -> Iterator[str]:
    for name, field in model.model_fields.items():
        place = f"{path}{joined}{field.alias or name}"
        nested, suffix = _find_model(field.annotation)
        if nested is not None:
            if suffix:
                yield f"{place}: {'list' if suffix == '[]' else 'mapping'}{_describe_default(field)}"
            yield from _list_model(place + suffix, nested)
        else:
            yield f"{place}: {describe_expected(field)}{_describe_default(field)}"


def _find_model(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """Return the model of a section and what leads to it: "" for itself, `.NAME` in a mapping, `[]` in a list."""
    if isinstance(annotation, type) and not get_args(annotation):
        return (annotation, "") if issubclass(annotation, BaseModel) else (None, "")
    for each in get_args(annotation):
        found, _ = _find_model(each)
        if found is not None:
            origin = get_origin(annotation)
            return found, ".NAME" if origin is dict else "[]" if origin in (list, tuple) else ""
    return None, ""


def _describe_default(field: FieldInfo) -> str:
    """Return ` = DEFAULT`, or `, required`."""
    if field.is_required():
        return ", required"
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or isinstance(default, SecretStr):
        return " = made anew" if default is PydanticUndefined else ' = ""'
    try:
        return f" = {json.dumps(default, ensure_ascii=False)}"
    except TypeError:  # a section that is null or made of its own defaults
        return ""
