"""What is generated from the schema: `default_config/ajet_default.yaml` and `docs/reference/configuration.md`.

Invariant: both say exactly what the schema says; a test compares.
"""

from __future__ import annotations

import json
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from ajet.config.backbones import list_shipped_backbones
from ajet.config.plugins import AddedKeys, find_parts, list_added_keys, list_plugins
from ajet.config.schema.accepted import ACCEPTED, FIXED, MOVED
from ajet.config.schema.base import (
    EVERYWHERE,
    SERVE,
    Section,
    describe_field,
    find_section_model,
    list_values,
    read_notes,
    walk_keys,
)
from ajet.config.schema.extended import config_model
from ajet.config.validate import describe_expected

COMMON_KEYS = (
    "project_name", "experiment_name", "backbone", "seed", "model.path", "model.dtype",
    "task_reader.type",
    "task_reader.jsonl_dataset_file.training.file_path", "task_reader.jsonl_dataset_file.validation.file_path",
    "task_reader.huggingface_dat_repo.dataset_path", "task_reader.huggingface_dat_repo.training_split",
    "task_reader.huggingface_dat_repo.validation_split",
    "task_judge.judge_protocol", "task_judge.scorer",
    "data.train_batch_size", "data.max_prompt_length", "data.max_response_length",
    "rollout.user_workflow", "rollout.engine", "rollout.num_repeat", "rollout.temperature", "rollout.max_model_len",
    "rollout.max_response_length_in_one_turn", "rollout.multi_turn.max_steps", "rollout.max_env_worker",
    "rollout.max_num_seqs", "rollout.episode_timeout", "rollout.compute_madness_checklist",
    "trainer_common.algorithm.adv_estimator", "trainer_common.optim.lr", "trainer_common.use_kl_loss",
    "trainer_common.total_training_steps", "trainer_common.total_epochs", "trainer_common.test_freq",
    "trainer_common.save_freq", "trainer_common.val_before_train", "trainer_common.gradient_checkpointing",
    "trainer_common.lora.rank", "trainer_common.n_gpus_per_node", "trainer_common.logger",
)  # fmt: skip
"""The keys that most runs set: those of the tutorials, and of the page on first settings."""
_TITLES = ("key", "default", "values", "meaning")
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
    model = config_model(shipped=True)
    lines += [*_common_keys(model), *_table((), model), "## Keys of plug-ins", ""]
    for each in sorted(list_added_keys(shipped=True), key=lambda added: added.plugin):
        lines += _plugin_keys(each, model)
    return "\n".join([*lines, *_accepted()]).rstrip() + "\n"


def _common_keys(model: type[Section]) -> list[str]:
    fields = {".".join(path): (path, field) for path, field, _ in walk_keys(model)}
    lines = [f"## The {len(COMMON_KEYS)} keys that most runs need", ""]
    lines += ["Below `ajet:`. The sections after this table have all keys, these in bold.", "", *_head(*_TITLES)]
    return [*lines, *(_row(*fields[key], name=key) for key in COMMON_KEYS), ""]


def _plugin_keys(added: AddedKeys, model: type[Section]) -> list[str]:
    """Return a heading for a plug-in, a table of the keys that it adds to a section, and its own sections."""
    (about,) = (each.plugin.about for each in list_plugins() if each.plugin and each.plugin.name == added.plugin)
    lines = [f"### `{added.plugin}`", "", f"{about[0].upper()}{about[1:]}."]
    parent: tuple[str, ...] = ()
    for name in filter(None, added.path.split(".")):
        parent = (*parent, name)
        field = model.model_fields[name]
        lines[-1] += _without_effect(parent, field)
        model = find_section_model(field) or model
    fields = [((*parent, name), model.model_fields[name]) for name in added.model.model_fields]
    if plain := [(path, field) for path, field in fields if find_section_model(field) is None]:
        lines += ["", *_head(*_TITLES), *(_row(path, field, name=".".join(path)) for path, field in plain)]
    lines.append("")
    for path, field in fields:
        if nested := find_section_model(field):
            lines += _table(path, nested, _without_effect(path, field), depth=4)
    return lines


def _head(*titles: str) -> list[str]:
    return [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]


def _table(path: tuple[str, ...], model: type[Section], said: str = "", depth: int = 2) -> list[str]:
    """Return a heading and a table for one section, then its subsections, without keys of plug-ins.

    Args:
        said: Where all of it has no effect.
        depth: The level of the heading, at most 5.
    """
    lines = [f"{'#' * min(depth, 5)} `{'.'.join(('ajet', *path))}`", ""]
    if path:
        lines += [f"{model.__doc__ or ''}{said}", ""]
    added = [each.model.model_fields for each in list_added_keys(shipped=True) if each.path == ".".join(path)]
    fields = {name: field for name, field in model.model_fields.items() if not any(name in each for each in added)}
    plain = [(name, field) for name, field in fields.items() if find_section_model(field) is None]
    if plain:
        lines += [*_head(*_TITLES), *(_row((*path, name), field) for name, field in plain), ""]
    for name, field in fields.items():
        nested = find_section_model(field)
        if nested is not None:
            lines += _table((*path, name), nested, _without_effect((*path, name), field), depth + 1)
    return lines


def _row(path: tuple[str, ...], field: FieldInfo, name: str = "") -> str:
    """Return a key's row.

    Args:
        name: Shown in place of the last part of the path, which is bold for a key that most runs need.
    """
    meaning = f"{describe_field(field)}{_without_effect(path, field)}"
    if path == ("backbone",):
        meaning += "".join(f" {each.name} {each.about}." for each in list_shipped_backbones().values())
    default = json.dumps(field.default, ensure_ascii=False) if field.default != {} else "{}"
    shown = f"`{name or path[-1]}`"
    if not name and ".".join(path) in COMMON_KEYS:
        shown = f"**{shown}**"
    cells = [shown, f"`{default}`", describe_expected(field), meaning]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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
