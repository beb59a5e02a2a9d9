"""What is generated from the schema: `default_config/ajet_default.yaml` and `docs/configuration.md`, in any
language.

Invariant: all say exactly what the schema says; a test compares. What no one has put into another language yet stands
there in English.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from ajet.config.backbone_names import shipped
from ajet.config.schema import AjetConfig
from ajet.config.schema.accepted import ACCEPTED, MOVED, UNCHANGED
from ajet.config.schema.base import EVERYWHERE, SERVE, Section, described, meta, refused, subsection
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


def configuration_md(words: Mapping[str, str] | None = None) -> str:
    """The text of `docs/configuration.md`. `words`: each of its sentences (`configuration_sentences`) in another
    language."""
    return _Page(words or {}).text()


def configuration_sentences() -> list[str]:
    """The sentences of `docs/configuration.md`, in its order, once each."""
    heard = _Heard()
    _Page(heard).text()
    return list(heard.asked)


class _Heard(dict[str, str]):
    """No words, but the list of those that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, None] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """Itself."""
        self.asked[key] = None
        return default


class _Page:
    """`docs/configuration.md` in some language."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words

    def text(self) -> str:
        """The whole page."""
        lines = [f"# {self._say('Configuration')}", "", _GENERATED, ""]
        for paragraph in _INTRODUCTION:
            lines += [self._say(paragraph), ""]
        lines += [*self._table((), AjetConfig), *self._accepted()]
        return "\n".join(lines).rstrip() + "\n"

    def _say(self, sentence: str) -> str:
        return str(self._words.get(sentence, sentence)) if sentence else ""

    def _head(self, *titles: str) -> list[str]:
        return [f"| {' | '.join(map(self._say, titles))} |", "|---" * len(titles) + "|"]

    def _table(self, path: tuple[str, ...], model: type[Section], said: str = "") -> list[str]:
        """A heading and a table for one section, then its subsections. `said`: where all of it has no effect."""
        title = ".".join(("ajet", *path))
        lines = [f"{'#' * min(title.count('.') + 2, 5)} `{title}`", ""]
        if path:
            lines += [f"{self._say(model.__doc__ or '')}{said}", ""]
        plain = [(name, field) for name, field in model.model_fields.items() if subsection(field) is None]
        if plain:
            lines += self._head("key", "default", "values", "meaning")
        for name, field in plain:
            meaning = f"{self._say(described(field))}{self._without_effect((*path, name), field)}"
            if (*path, name) == ("backbone",):
                by = self._say(" {backbone} {does}.")
                meaning += "".join(
                    by.format(backbone=each.name, does=self._say(each.about)) for each in shipped().values()
                )
            for _, sentence in refused(field):
                meaning += f" {self._say(sentence)}"
            default = json.dumps(field.default, ensure_ascii=False) if field.default != {} else "{}"
            cells = [f"`{name}`", f"`{default}`", self._say(expectation(field)), meaning]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines += [""] if plain else []
        for name, field in model.model_fields.items():
            nested = subsection(field)
            if nested is not None:
                lines += self._table((*path, name), nested, self._without_effect((*path, name), field))
        return lines

    def _without_effect(self, path: tuple[str, ...], field: FieldInfo) -> str:
        """The sentences that say where a key, or all of a section, is not read: as the schema says it, and the
        backbones that come with ajet."""
        notes, key = meta(field), ".".join(path)
        reasons: dict[str, list[str]] = {}
        idle = {self._say("on {backbone}").format(backbone=name): each.idle[key]
                for name, each in shipped().items() if key in each.idle}  # fmt: skip
        idle |= {self._say(_PLACES[place]): why for place, why in notes.get("idle", {}).items()}
        for place, why in idle.items():
            if why is not None:
                reasons.setdefault(why, []).append(place)
        none, too = self._say("*No effect {where}*: {why}."), self._say("*Also {where}.*")
        both, either = self._say("{one} and {other}"), self._say("{one} or {other}")
        said = [none.format(where=_joined(both, where), why=self._say(why)) for why, where in reasons.items()]
        said += [too.format(where=place) for place, why in idle.items() if why is None]
        if "when" in notes:
            chooser, *values = notes["when"]
            settings = [f"`{chooser}: {values[0]}`", *(f"`{value}`" for value in values[1:])]
            said.append(self._say("*Read with* {settings}.").format(settings=_joined(either, settings)))
        return "".join(f" {sentence}" for sentence in said)

    def _accepted(self) -> list[str]:
        lines = [f"## {self._say('Accepted for older YAMLs')}", ""]
        lines += [self._say("They may be set to anything, and have no effect."), ""]
        lines += self._head("in", "key", "why it has none")
        for name, why in ACCEPTED.items():
            section, _, key = f"ajet.{name}".rpartition(".")
            lines.append(f"| `{section}` | `{key}` | {self._say(why)} |")
        lines += ["", self._say(_AT_ONE_VALUE), "", *self._head("key", "value", "otherwise")]
        lines += [
            f"| `ajet.{name}` | `{json.dumps(at.value)}` | {self._say(at.otherwise)} |"
            for name, at in UNCHANGED.items()
        ]
        lines += ["", self._say("These are other names of keys above."), "", *self._head("key", "ours")]
        return lines + [f"| `ajet.{other}` | `ajet.{ours}` |" for other, ours in MOVED.items()]


def _joined(pair: str, parts: list[str]) -> str:
    first, *rest = parts
    for each in rest:
        first = pair.format(one=first, other=each)
    return first


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
