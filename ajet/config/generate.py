"""What is generated from the schema: `default_config/ajet_default.yaml` and `docs/configuration.md`.

Invariant: both say exactly what the schema says; a test compares.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

import yaml

from ajet.config.schema import AjetConfig
from ajet.config.schema.base import Section, meta, subsection
from ajet.config.validate import expectation

_HEAD = """\
# Every key under `ajet:` with its default. Generated from ajet/config/schema by `make docs`: change it there.
"""


def defaults_yaml() -> str:
    """The text of `ajet_default.yaml`."""
    return _HEAD + "ajet:\n" + "\n".join(_yaml_lines(AjetConfig, 1)) + "\n"


def _yaml_lines(model: type[Section], depth: int) -> list[str]:
    lines: list[str] = []
    pad = "  " * depth
    for name, field in model.model_fields.items():
        nested = subsection(field)
        if nested is not None:
            lines += [f"{pad}{name}:", *_yaml_lines(nested, depth + 1)]
        else:
            lines.append(f"{pad}{name}: {_scalar(field.default)}")
    return lines


def _scalar(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1000).strip()
    return text.removesuffix("...").strip()


def configuration_md() -> str:
    """The text of `docs/configuration.md`."""
    lines = [
        "# Configuration",
        "",
        "<!-- Generated from ajet/config/schema by `make docs`; change the descriptions there. -->",
        "",
        textwrap.dedent(
            """\
            Everything under `ajet:` in a YAML. Every key has a default; a run needs at least `model.path`,
            `rollout.user_workflow` and a source of tasks. `ajet config show` prints the whole config of a YAML,
            `ajet config why KEY` where a value comes from. On the command line a key is set as `rollout.num_repeat=8`,
            with or without the leading `ajet.`."""
        ),
        "",
        "Keys marked *ignored* are accepted so that existing YAMLs load; each says why it has no effect.",
        "",
        *_table("ajet", AjetConfig),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(title: str, model: type[Section]) -> list[str]:
    """A heading and a table for one section, then its subsections."""
    heading = "#" * min(title.count(".") + 2, 5)
    lines = [f"{heading} `{title}`", ""]
    if title != "ajet":
        lines += [model.__doc__ or "", ""]
    plain = [(name, field) for name, field in model.model_fields.items() if subsection(field) is None]
    if plain:
        lines += ["| key | default | values | meaning |", "|---|---|---|---|"]
    for name, field in plain:
        notes = meta(field)
        meaning = field.description or ""
        if "ignored" in notes:
            meaning = f"*Ignored*: {notes['ignored']}."
        for _, sentence in notes.get("later", ()):
            meaning += f" {sentence}"
        default = json.dumps(field.default, ensure_ascii=False) if field.default != {} else "{}"
        cells = [f"`{name}`", f"`{default}`", expectation(field), meaning]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += [""] if plain else []
    for name, field in model.model_fields.items():
        nested = subsection(field)
        if nested is None:
            continue
        if "ignored" in meta(field):
            keys = ", ".join(f"`{key}`" for key in nested.model_fields)
            lines += [f"{heading}# `{title}.{name}`", "", f"*Ignored*: {meta(field)['ignored']}. Keys: {keys}.", ""]
        else:
            lines += _table(f"{title}.{name}", nested)
    return lines
