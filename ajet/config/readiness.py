"""Check that an experiment can run: no missing keys and no unsupported values.

Invariant: a YAML with only a project's name composes. A run needs more keys, and a single error names all missing keys.
"""

from __future__ import annotations

import re
from typing import Any

from ajet.config.backbones import CAPABILITY_WORDS, Capability, find_backbone, list_shipped_backbones
from ajet.config.compose import Layers
from ajet.config.keys import list_top_names
from ajet.config.plugins import find_part
from ajet.config.references import is_of_running_program, parse_reference
from ajet.config.schema import AjetConfig
from ajet.config.schema.base import walk_keys
from ajet.config.schema.extended import config_model
from ajet.config.schema.sft import OBJECTIVE
from ajet.config.unread_sections import suggest_first_lines
from ajet.schema.commands import format_command
from ajet.schema.errors import ConfigError

TIMES = "trainer_common.algorithm.max_trained_count"
TRAINING_FILE = ".training.file_path"
"""Suffix of a reader's key for the file of training tasks."""
_ADAPTER = re.compile(r"(?!(default|base)$)[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def list_missing_keys(config: AjetConfig, *, serving: bool = False, evaluating: bool = False) -> list[tuple[str, str]]:
    """Return (dotted key, description of its value) of each key that a run needs and the settings lack.

    Args:
        serving: True if agents and tasks may come from clients.
        evaluating: True if no training task is read.
    """
    rollout = config.rollout
    requirements: list[tuple[str, Any, str]] = []
    if rollout.engine == "endpoint":
        requirements += [
            ("rollout.endpoint.base_url", rollout.endpoint.base_url, "the URL of the server"),
            ("rollout.endpoint.model", rollout.endpoint.model, "the name of the model on the server"),
        ]
    else:
        requirements.append(("model.path", config.model.path, "the model to train"))
    sft = config.sft
    if sft.objective is not None and not (serving or evaluating):
        source = sft.train_files or sft.from_run
        requirements.append(("sft.train_files", source, "a file of rows to learn from; or set sft.from_run"))
    elif not serving:
        requirements.append(
            (
                "rollout.user_workflow",
                rollout.user_workflow,
                "the agent's class or function, such as workflow.py->MyWorkflow",
            )
        )
        requirements += [
            requirement
            for requirement in _list_reader_needs(config)
            if not (evaluating and requirement[0].endswith(TRAINING_FILE))
        ]
    return [(f"ajet.{name}", meaning) for name, value, meaning in requirements if value is None]


def has_tasks(config: AjetConfig) -> bool:
    """Return True if the task reader's required keys are set."""
    return all(value is not None for _, value, _ in _list_reader_needs(config))


def _list_reader_needs(config: AjetConfig) -> list[tuple[str, Any, str]]:
    """Return (key, value, description) of the key that the chosen task reader requires, or [] if it requires none."""
    kind = config.task_reader.type
    reader = find_part("reader", kind)
    if reader is None or reader.first_key is None:
        return []
    name, meaning = reader.first_key
    key = f"task_reader.{kind}.{name}"
    return [(key, get_setting(config, tuple(key.split("."))), meaning)]


def require_ready(
    config: AjetConfig,
    layers: Layers,
    where: str,
    *,
    serving: bool = False,
    evaluating: bool = False,
    previewing: bool = False,
) -> None:
    """Raise ConfigError for a setting that is refused, or one error for all missing keys.

    Args:
        layers: The sources of the settings, to name the place of each.
        where: The place named in the error for missing keys.
        serving: True if agents and tasks may come from clients.
        evaluating: True if no training task is read.
        previewing: True if no run starts now. A later start may name a store that samplers fill.
    """
    backbone = find_backbone(config.backbone)
    if serving and config.sft.objective is not None:
        raise ConfigError(
            "A run that trains on given replies (sft.objective is set) cannot serve agents.",
            where=layers.locate(("ajet", *OBJECTIVE.split(".")), value=True),
            do=f"start it with ajet.{OBJECTIVE}=null",
        )
    for path, _, notes in walk_keys(config_model()):
        setting = None if evaluating and ".".join(path) == OBJECTIVE else get_setting(config, path)
        # Settings of training have no effect on a backbone that does not train.
        has_no_effect = path[0] == "trainer_common" and "trains" not in backbone.can
        for value, capability in () if has_no_effect else notes.get("needs", ()):
            if setting == value and capability not in backbone.can:
                raise ConfigError(
                    f"`{path[-1]}: {str(value).lower()}` is not possible on the backbone {backbone.name}, which "
                    f"cannot {CAPABILITY_WORDS[capability]}.",
                    where=f"{layers.locate(('ajet', *path), value=True)} (ajet.{'.'.join(path)})",
                    expected=f"another value, or --backbone {' or '.join(_list_capable_backbones(capability))}",
                )
    if not evaluating and not (previewing and "decouples" in backbone.can):
        _refuse_reuse(config, layers, serving)
        _refuse_adapters(config, layers)
    if not serving:
        _refuse_out_of_reach(config, layers)
    _refuse_clash(config, layers)
    missing = list_missing_keys(config, serving=serving, evaluating=evaluating)
    if missing:
        described = [f"{name} ({meaning})" for name, meaning in missing]
        missing_list = ", ".join(described[:-1]) + " and " + described[-1] if len(described) > 1 else described[0]
        in_python = any(layer.document.from_python for layer in layers.stack if layer.document is not None)
        advice = "add the key to `settings=` of ajet.tune, or by `set(…)` of a job"
        if not in_python:
            advice = "add the key to the YAML, or as key=value on the command line"
        if lines := suggest_first_lines(layers, [name for name, _ in missing]):
            advice = lines
        elif misplaced_keys := [
            name for name in list_top_names() if name not in backbone.roots and layers.find_winner((name,))
        ]:
            advice = f"move `{misplaced_keys[0]}` below `ajet:`, where ajet reads it" + (
                ", and the other sections too" if misplaced_keys[1:] else ""
            )
        elif (misnamed_root := _find_misnamed_root(layers)) is not None:
            advice = f"write `ajet:` instead of `{misnamed_root}:`, which ajet reads as a section of your own"
        elif not list_missing_keys(config, serving=True) and has_tasks(config):
            advice += f"; if ajet does not start the agents: {format_command('serve', '--conf', 'FILE.yaml')}"
        raise ConfigError(f"The run still needs: {missing_list}.", where=where, do=advice)


def _find_misnamed_root(layers: Layers) -> str | None:
    """Return a top-level name of the YAML whose section holds only keys of `ajet:`, or None."""
    user_tree = [layer.tree for layer in layers.stack if layer.document is not None][-1]
    if user_tree.get("ajet"):
        return None
    top_names = set(list_top_names())
    sections = {name: tree for name, tree in user_tree.items() if isinstance(tree, dict)}
    return next(
        (name for name, tree in sections.items() if len(top_names & {*tree}) > 1 and not {*tree} - top_names), None
    )


def _list_capable_backbones(wanted: Capability) -> list[str]:
    """Return the names of the shipped training backbones that have a capability."""
    return [backbone.name for backbone in list_shipped_backbones().values() if {wanted, "trains"} <= backbone.can]


def _refuse_adapters(config: AjetConfig, layers: Layers) -> None:
    """Raise ConfigError for several adapters that have invalid names or no rank, or that the run cannot train."""
    backbone, lora = find_backbone(config.backbone), config.trainer_common.lora
    if "trains" not in backbone.can or not lora.adapters:
        return
    mode, objective = config.trainer_common.mode, config.sft.objective
    invalid_name = next((name for name in lora.adapters if not _ADAPTER.fullmatch(name)), None)
    unranked = next((name for name, adapter in lora.adapters.items() if not (adapter.rank or lora.rank)), None)
    refusals = [
        ("adapts" not in backbone.can, "", f"The backbone {backbone.name} cannot {CAPABILITY_WORDS['adapts']}.",
         f"--backbone {' or '.join(_list_capable_backbones('adapts'))}, or one adapter: lora.rank"),
        (invalid_name is not None, invalid_name, f"{invalid_name!r} is not a valid name of an adapter.",
         "1 to 64 letters, digits, - and _, and neither default nor base"),
        (unranked is not None, unranked, f"The adapter {unranked} has no rank, and no default rank is set.",
         f"lora.adapters.{unranked}.rank, or lora.rank for all of them"),
        (mode != "sync", "", (
            f"Several adapters are set, but this run samples in other processes (mode: {mode}, ajet sample or "
            "--from-store), which cannot use several adapters."
            ),
         "trainer_common.mode: sync, and no samplers (no ajet sample, no --from-store)"),
        (objective is not None, "", (
            f"Training on given replies (sft.objective: {objective}) is set together with several adapters, and the "
            "replies do not say which adapter learns them."
            ), "one adapter (lora.rank); several adapters can only be trained on episodes"),
    ]  # fmt: skip
    for is_refused, name, message, expected in refusals:
        if is_refused:
            path = ("trainer_common", "lora", "adapters", *([name] if name else []))
            raise ConfigError(
                message, where=f"{layers.locate(('ajet', *path))} (ajet.{'.'.join(path)})", expected=expected
            )


def _refuse_reuse(config: AjetConfig, layers: Layers, serving: bool) -> None:
    """Raise ConfigError if a group should be trained in several steps, but no store holds it for later steps."""
    backbone, times = find_backbone(config.backbone), get_setting(config, tuple(TIMES.split(".")))
    mode = get_setting(config, ("trainer_common", "mode"))
    if times > 1 and "trains" in backbone.can and (serving or mode != "async"):
        scope = "in ajet serve" if serving else f"on {backbone.name}, in mode: {mode}"
        raise ConfigError(
            f"The backbone trains on each group only once {scope}.",
            where=f"{layers.locate(('ajet', *TIMES.split('.')), value=True)} (ajet.{TIMES}: {times})",
            expected="1; or a run with samplers (--from-store; --backbone "
            f"{' or '.join(_list_capable_backbones('decouples'))})",
            do="to make several optimizer steps of a step's groups, set ajet.trainer_common.mini_batch_num",
        )


def _refuse_clash(config: AjetConfig, layers: Layers) -> None:
    """Raise ConfigError for two settings that exclude each other."""
    rollout, sft = config.rollout, config.sft
    clashes = [
        (rollout.deterministic and rollout.group_deadline is not None, ("rollout", "group_deadline"),
         "rollout.group_deadline closes groups by the clock, which a deterministic rollout cannot repeat.",
         "null, together with rollout.deterministic: true"),
        (sft.objective is not None and sft.train_files is not None and sft.from_run is not None,
         ("sft", "from_run"), "Both files and a recorded run are set as the source of replies to learn from.",
         "sft.train_files or sft.from_run"),
    ]  # fmt: skip
    for is_set, path, message, expected in clashes:
        if is_set:
            location = f"{layers.locate(('ajet', *path), value=True)} (ajet.{'.'.join(path)})"
            raise ConfigError(message, where=location, expected=expected)


def _refuse_out_of_reach(config: AjetConfig, layers: Layers) -> None:
    """Raise ConfigError for a reference into the running program that another process would have to import.

    Backbones with worker processes, and some values of `rollout.isolation`, run the code in other processes.
    """
    isolation = find_part("isolation", config.rollout.isolation)
    references: list[tuple[tuple[str | int, ...], Any]] = [
        (("rollout", "user_workflow"), config.rollout.user_workflow),
        (("rollout", "train_turn"), config.rollout.train_turn),
        *config.task_judge.list_judges(),
        (("task_reader", "type"), config.task_reader.type),
    ]
    for path, reference in references:
        if not is_of_running_program(reference):
            continue
        key = ".".join(map(str, path))
        backbone = find_backbone(config.backbone)
        name, is_other_process = parse_reference(reference).name, "interactive" not in backbone.can
        if is_other_process or (key == "rollout.user_workflow" and isolation and not isolation.interactive):
            owner = backbone.name if is_other_process else f"rollout.isolation: {config.rollout.isolation}"
            raise ConfigError(
                f"{name} is defined in the running program or notebook; the processes of {owner} cannot import it.",
                where=f"{layers.locate(('ajet', *path), value=True)} (ajet.{key}: {reference})",
                expected="a class or function in a separate file",
                do=f"move {name} to a file, say mine.py, and `from mine import {name}`"
                + ("" if is_other_process else ", or use rollout.isolation: thread"),
            )


def get_setting(config: Any, path: tuple[str, ...]) -> Any:
    """Return the value of a key, given as path below `ajet`, in the typed configuration."""
    for name in path:
        config = getattr(config, name)
    return config
