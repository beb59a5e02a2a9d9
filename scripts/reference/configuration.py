"""What is generated from the schema: `default_config/ajet_default.yaml` and `docs/reference/configuration.md`.

Invariant: both say exactly what the schema says; a test compares.
"""

from __future__ import annotations

import json
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from ajet.config.backbones import list_shipped_backbones
from ajet.config.plugins import find_parts
from ajet.config.schema.accepted import ACCEPTED, FIXED, MOVED
from ajet.config.schema.base import (
    EVERYWHERE,
    SERVE,
    Section,
    describe_field,
    find_section_model,
    list_values,
    read_notes,
)
from ajet.config.schema.extended import config_model
from ajet.config.validate import describe_expected

_HEAD = """\
# Every key under `ajet:` with its default. Generated from ajet/config/schema by `make docs`: change it there.
"""


def defaults_yaml() -> str:
    """The text of `ajet_default.yaml`."""
    return _HEAD + "ajet:\n" + "\n".join(_yaml_lines(config_model(shipped=True), 1)) + "\n"


def _yaml_lines(model: type[Section], depth: int) -> list[str]:
    lines: list[str] = []
    pad = "  " * depth
    for name, field in model.model_fields.items():
        nested = find_section_model(field)
        if nested is not None:
            lines += [f"{pad}{name}:", *_yaml_lines(nested, depth + 1)]
        else:
            lines.append(f"{pad}{name}: {_scalar(field.default)}")
    return lines


def _scalar(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1000).strip()
    return text.removesuffix("...").strip()


def configuration_md() -> str:
    """Return the text of `docs/reference/configuration.md`."""
    lines = ["# Configuration", "", _GENERATED, ""]
    for paragraph in _INTRODUCTION:
        lines += [paragraph, ""]
    lines += [*_table((), config_model(shipped=True)), *_accepted()]
    return "\n".join(lines).rstrip() + "\n"


def _head(*titles: str) -> list[str]:
    return [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]


def _table(path: tuple[str, ...], model: type[Section], said: str = "") -> list[str]:
    """A heading and a table for one section, then its subsections. `said`: where all of it has no effect."""
    title = ".".join(("ajet", *path))
    lines = [f"{'#' * min(title.count('.') + 2, 5)} `{title}`", ""]
    if path:
        lines += [f"{model.__doc__ or ''}{said}", ""]
    plain = [(name, field) for name, field in model.model_fields.items() if find_section_model(field) is None]
    if plain:
        lines += _head("key", "default", "values", "meaning")
    for name, field in plain:
        meaning = f"{describe_field(field)}{_without_effect((*path, name), field)}"
        if (*path, name) == ("backbone",):
            meaning += "".join(f" {each.name} {each.about}." for each in list_shipped_backbones().values())
        default = json.dumps(field.default, ensure_ascii=False) if field.default != {} else "{}"
        cells = [f"`{name}`", f"`{default}`", describe_expected(field), meaning]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += [""] if plain else []
    for name, field in model.model_fields.items():
        nested = find_section_model(field)
        if nested is not None:
            lines += _table((*path, name), nested, _without_effect((*path, name), field))
    return lines


def _without_effect(path: tuple[str, ...], field: FieldInfo) -> str:
    """The sentences that say where a key, or all of a section, is not read: as the schema says it, and the
    backbones that come with ajet."""
    notes, key = read_notes(field), ".".join(path)
    reasons: dict[str, list[str]] = {}
    idle = {f"on {name}": each.idle[key] for name, each in list_shipped_backbones().items() if key in each.idle}
    idle |= {_PLACES[place]: why for place, why in notes.get("idle", {}).items()}
    for place, why in idle.items():
        if why is not None:
            reasons.setdefault(why, []).append(place)
    said = [f"*No effect {' and '.join(places)}*: {why}." for why, places in reasons.items()]
    said += [f"*Also {place}.*" for place, why in idle.items() if why is None]
    if "when" in notes:
        chooser, *values = list_values(notes["when"], find_parts("store"))
        settings = [f"`{chooser}: {values[0]}`", *(f"`{value}`" for value in values[1:])]
        said.append(f"*Read with* {' or '.join(settings)}.")
    return "".join(f" {sentence}" for sentence in said)


def _accepted() -> list[str]:
    lines = ["## Accepted for older YAMLs", ""]
    lines += ["They may be set to anything, and have no effect.", ""]
    lines += _head("in", "key", "why it has none")
    for name, why in ACCEPTED.items():
        section, _, key = f"ajet.{name}".rpartition(".")
        lines.append(f"| `{section}` | `{key}` | {why} |")
    lines += ["", _AT_ONE_VALUE, "", *_head("key", "value", "otherwise")]
    lines += [f"| `ajet.{name}` | `{json.dumps(at.value)}` | {at.refusal} |" for name, at in FIXED.items()]
    lines += ["", "These are other names of keys above.", "", *_head("key", "ours")]
    return lines + [f"| `ajet.{other}` | `ajet.{ours}` |" for other, ours in MOVED.items()]


_GENERATED = "<!-- Generated from ajet/config/schema by `make docs`; change the descriptions there. -->"
_INTRODUCTION = (
    """\
Everything under `ajet:` in a YAML. Every key has a default; a run needs at least `model.path`,
`rollout.user_workflow` and a source of tasks. `ajet config show` prints the whole config of a YAML,
`ajet config why KEY` where a value comes from. On the command line a key is set as `rollout.num_repeat=8`,
with or without the leading `ajet.`.""",
    """\
A key has an effect on every backbone, and in `ajet serve`, unless it says where it has none. `ajet config
validate`, `--dry-run` and every start name the keys that were set and have no effect there.""",
)
_AT_ONE_VALUE = "These are understood at one value, which says what is done in any case; another is refused."
_PLACES = {EVERYWHERE: "on any backbone", SERVE: "in `ajet serve`"}
