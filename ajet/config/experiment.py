"""Experiment: a YAML with its overrides, composed, resolved and typed.

Invariant: ajet's code reads `ajet` only. The user's own sections reach the workflow unchanged. `dump_resolved()` loads
to an equal experiment from any folder. No written file holds a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from ajet.config.backbones import Descriptor, find_backbone
from ajet.config.compose import ABSENT, Layers, collect_layers, compose
from ajet.config.document import Document, dump_yaml, list_leaves, parse_document, read_document
from ajet.config.dotenv import load_dotenv_files
from ajet.config.idle import RESOLVED, IdleKeys, find_idle_keys, find_idle_reason, list_user_layers
from ajet.config.locations import find_preset
from ajet.config.overrides import find_overridden_key, parse_overrides
from ajet.config.readiness import get_setting, has_tasks, require_ready
from ajet.config.references import find_referenced_file, parse_reference, relativize
from ajet.config.resolution import (
    HIDDEN,
    dump_unresolved,
    find_environment_paths,
    hide_secrets,
    is_secret_path,
    make_writable,
    resolve_tree,
)
from ajet.config.schema import AjetConfig
from ajet.config.schema.base import walk_keys
from ajet.config.schema.choices import is_reference
from ajet.config.schema.extended import config_model
from ajet.config.schema.trainer_common import STALE_CAP
from ajet.config.shapes import list_backbone_roots, split_document
from ajet.config.validate import validate_tree
from ajet.config.view import View
from ajet.schema.errors import ConfigError

DEFAULT_ROOT = "launcher_record"
PRESET = ("ajet", "trainer_common", "algorithm", "preset")


@dataclass(frozen=True)
class Experiment:
    """A complete, typed configuration: the input of a run. Made by `load_experiment` or `Experiment.from_dict`."""

    ajet: AjetConfig
    sections: dict[str, Any]
    """The user's own root names."""
    backbone_overrides: dict[str, Any]
    """Sections of backbones as in the YAML, by name; interpolations are not resolved."""
    name: str
    yaml_path: Path
    yaml_text: str = field(repr=False)
    """Text of the YAML file, with literal secrets replaced."""
    overrides: tuple[str, ...]
    base: Path
    """The folder where relative references and paths are looked up first."""
    root: Path
    """The folder of all runs."""
    layers: Layers = field(repr=False)
    raw: dict[str, Any] = field(repr=False)
    """The composed tree with unresolved interpolations."""

    @classmethod
    def from_dict(
        cls,
        tree: Mapping[str, Any],
        *,
        base: Path,
        exp_dir: Path | None = None,
        from_python: bool = False,
        base_document: Document | None = None,
    ) -> Experiment:
        """Return the experiment of the settings `tree`, as if a YAML in the folder `base` contained them.

        Args:
            exp_dir: Folder of all runs.
            from_python: True if no such file exists. Errors then name no file, except for values of `base_document`.
            base_document: YAML file from which `tree` was derived.

        Raises:
            ConfigError: The settings cannot be used.
        """
        experiment_name = (tree.get("ajet") or {}).get("experiment_name") or "experiment"
        path = Path(base).absolute() / f"{experiment_name}.yaml"
        document = replace(parse_document(dump_yaml(tree), path), from_python=from_python, base_document=base_document)
        return _build_experiment(document, exp_dir=exp_dir)

    @classmethod
    def from_text(cls, yaml: str, path: Path, *, root: Path) -> Experiment:
        """Return the experiment of a YAML text that another process or machine sent, as if it were the file `path`.

        Args:
            root: The folder of all runs.

        Raises:
            ConfigError: The text cannot be used.
        """
        return _build_experiment(parse_document(yaml, path), exp_dir=root)

    @cached_property
    def backbone(self) -> Descriptor:
        """The descriptor of `ajet.backbone`. Raises ConfigError if the backbone is not installed."""
        return find_backbone(self.ajet.backbone)

    @property
    def config(self) -> View:
        """The complete configuration with attribute access, read-only: `tuner.config`, and a judge's `self.config`."""
        ajet = {**self.ajet.model_dump(), "base_dir": str(self.base)}
        return View({"ajet": ajet, **self.sections, **self.backbone_overrides})

    def require_ready(self, *, serving: bool = False, evaluating: bool = False, previewing: bool = False) -> None:
        """Raise ConfigError if no run can start: a required key is missing, or this version refuses a value.

        Args:
            serving: True in `ajet serve`, where agents and tasks may come from clients.
            evaluating: True if no training task is read.
            previewing: True if no run starts now. A later start may name a store that sampler processes fill.
        """
        (*_, user_document) = (layer.document for layer in self.layers.stack if layer.document is not None)
        written = str(self.yaml_path) if self.yaml_path.exists() else "command line"
        location = user_document.locate(()) if user_document.from_python else written
        require_ready(self.ajet, self.layers, location, serving=serving, evaluating=evaluating, previewing=previewing)

    @property
    def has_tasks(self) -> bool:
        """True if a task reader is configured."""
        return has_tasks(self.ajet)

    def list_idle_keys(self, *, serving: bool = False) -> list[IdleKeys]:
        """Return the keys that the user set and that have no effect in this run, each with place and reason.

        Args:
            serving: True in `ajet serve`.
        """
        return find_idle_keys(self.ajet, self.layers, serving=serving)

    def dump_resolved(
        self, convert_user_text: Callable[[str], str] = str, hide: Callable[[str], str] = lambda secret: HIDDEN
    ) -> str:
        """Return the complete configuration as YAML, with resolved values.

        `ajet --conf` on the text repeats the run from any folder.

        Args:
            convert_user_text: converts each text in the user's own sections.
            hide: converts a secret written literally.
        """
        tree = {"ajet": self.settle_values(), **self.sections, **self.backbone_overrides}
        head = f"{RESOLVED}{self.name}: `ajet --conf` on this file repeats the run.\n"
        return head + dump_yaml(
            make_writable(
                tree, self.raw, backbones=self.backbone_overrides, convert_user_text=convert_user_text, hide=hide
            )
        )

    def list_training_settings(self) -> dict[str, Any]:
        """Return the settings that must stay equal when a run is resumed: value by dotted key.

        Names, logging, debugging, the gateway, run folders and the frequency of saving and validation are left out.
        Paths inside the project are relative, so a moved project has equal settings.
        """
        settled = self.settle_values()
        for path, _, notes in walk_keys(config_model()):
            if notes.get("kind") in ("path", "reference"):
                _set_node(settled, path, relativize(_get_node(settled, path), self.base))
        flat: dict[str, Any] = {}
        for path, _, notes in walk_keys(config_model()):
            if notes.get("training", True) and self._affects_training(notes):
                flat[f"ajet.{'.'.join(path)}"] = _get_node(settled, path)
        # The learning rate of a step then depends on the number of steps.
        if self.ajet.trainer_common.optim.lr_schedule != "constant":
            for name in ("total_epochs", "total_training_steps"):
                flat[f"ajet.trainer_common.{name}"] = settled["trainer_common"][name]
        own_sections = dict(self.sections)
        if self.backbone.roots:
            own_sections.update(self.backbone_overrides)
        hidden = find_environment_paths(self.raw, self.backbone_overrides)
        for path, value in list_leaves(own_sections):
            if path not in hidden and not is_secret_path(path):
                flat[".".join(map(str, path))] = value
        return flat

    def list_set_keys(self) -> list[str]:
        """Return the dotted keys below `ajet` that the user set; all other keys have defaults."""
        user_layers = list_user_layers(self.layers)
        return [
            ".".join(("ajet", *path))
            for path, _, _ in walk_keys(config_model())
            if any(layer.get_value(("ajet", *path)) is not ABSENT for layer in user_layers)
        ]

    def replace_defaults(self, values: Mapping[str, Any]) -> Experiment:
        """Return a copy of the experiment with other values for keys that the user did not set.

        Args:
            values: By dotted key, as `list_training_settings` names it.

        Raises:
            ValueError: This version of ajet refuses a value.
        """
        ajet = self.ajet.model_copy(deep=True)
        for name, value in values.items():
            *sections, last = name.split(".")[1:]
            node: Any = ajet
            for section in sections:
                node = getattr(node, section)
            setattr(node, last, value)
        return replace(self, ajet=ajet)

    def adapt_to_serve(self) -> Experiment:
        """Return the experiment for `ajet serve`, in which `is_cap: auto` means a cap.

        Clients go on sampling during an update there, so some tokens come from an older policy.
        """
        settings = self.ajet.trainer_common.algorithm
        if settings.is_cap != "auto" or settings.old_policy == "behaviour":
            return self
        return self.replace_defaults({"ajet.trainer_common.algorithm.is_cap": STALE_CAP})

    def _affects_training(self, notes: dict[str, Any]) -> bool:
        """Return True if a key can change the training, in a run or in `ajet serve`, so that a resume must compare it.

        Keys of task readers that the YAML does not choose have no effect. With a backbone that does not train, every
        key that some backbone reads counts, because a training may follow.

        Args:
            notes: a key's notes, from `walk_keys`.
        """
        backbone = self.backbone if "trains" in self.backbone.can else Descriptor("", "")
        serving_modes = (False,) if self.ajet.sft.objective is not None else (False, True)
        return any(find_idle_reason(notes, self.ajet, backbone, serving=serving) is None for serving in serving_modes)

    def settle_values(self) -> dict[str, Any]:
        """Return the settings below `ajet` as plain values that mean the same in any folder and at any time.

        Paths and references become absolute, the run's name and folders are filled in, and `is_cap: auto` becomes its
        value.
        """
        tree = _reveal_secrets(self.ajet.model_dump())
        tree.update(experiment_name=self.name, experiment_dir=str(self.root), base_dir=str(self.base))
        tree["trainer_common"]["algorithm"]["is_cap"] = self.ajet.trainer_common.importance_cap
        for path, _, notes in walk_keys(config_model()):
            value = get_setting(self.ajet, path)
            if notes.get("kind") == "path" and value:
                paths = [_settle_path(text, self.base) for text in ([value] if isinstance(value, str) else value)]
                _set_node(tree, path, paths[0] if isinstance(value, str) else paths)
            elif notes.get("kind") == "reference" and isinstance(value, (str, list)):
                references = [
                    _settle_reference(text, self.base) for text in ([value] if isinstance(value, str) else value)
                ]
                _set_node(tree, path, references[0] if isinstance(value, str) else references)
        return tree


def load_experiment(
    conf: Path | str,
    *,
    backbone: str | None = None,
    overrides: Sequence[str] = (),
    exp_dir: Path | None = None,
) -> Experiment:
    """Return the checked experiment of a YAML with overrides.

    First loads `.env` of the working directory and of the YAML's folder; existing variables win.
    `Experiment.require_ready` checks the further needs of a run.

    Args:
        conf: The YAML.
        backbone: Value of `--backbone`, which replaces `ajet.backbone`.
        overrides: `key=value` texts.
        exp_dir: Folder of all runs. None: as the YAML says.

    Raises:
        ConfigError: The YAML or an override cannot be used.
    """
    path = Path(conf).expanduser()
    load_dotenv_files([Path.cwd(), path.absolute().parent])
    return _build_experiment(read_document(path), backbone=backbone, overrides=overrides, exp_dir=exp_dir)


def load_defaults(
    *, backbone: str | None = None, overrides: Sequence[str] = (), name: str = "defaults", exp_dir: Path | None = None
) -> Experiment:
    """Return the experiment of defaults and overrides, as if the working directory had an empty YAML `name`.yaml."""
    path = Path.cwd() / f"{name}.yaml"
    return _build_experiment(parse_document("", path), backbone=backbone, overrides=overrides, exp_dir=exp_dir)


def _build_experiment(
    document: Document,
    *,
    backbone: str | None = None,
    overrides: Sequence[str] = (),
    exp_dir: Path | None = None,
) -> Experiment:
    """Return the checked experiment of a parsed YAML with its preset, its backbone's defaults and the overrides.

    Raises:
        ConfigError: The YAML or an override cannot be used.
    """
    chosen_backbone = _choose_backbone(document, overrides, backbone)
    roots = list_backbone_roots(chosen_backbone)
    parts = split_document(document, roots)
    parsed_overrides = parse_overrides(overrides, roots={*parts.sections, *parts.backbone}, backbones=roots)
    preset = _choose_preset(document, overrides)
    lower_layers = [
        *([chosen_backbone.layer] if chosen_backbone.layer else []),
        *([find_preset(preset)] if preset else []),
    ]
    layers = collect_layers(document, parts, parsed_overrides, chosen=lower_layers, flag=backbone)
    composed = compose(layers, parsed_overrides, chosen=lower_layers, flag=backbone)
    raw = dump_unresolved(composed)
    tree = resolve_tree(composed, raw, layers, roots)
    if not isinstance(tree["ajet"], dict):
        raise ConfigError(
            f"`ajet` is {tree['ajet']!r}; it must be a mapping of keys.", where=layers.locate(("ajet",), value=True)
        )
    config = validate_tree(tree, layers)
    if config.trainer_common.algorithm.preset != preset:
        raise ConfigError(
            f"The preset {config.trainer_common.algorithm.preset!r} is set by an interpolation or a default, "
            "which ajet resolves too late for a preset.",
            where=layers.locate(PRESET, value=True),
            expected=f"the preset's name itself: {'.'.join(PRESET)}: minirl",
        )
    del tree["ajet"]
    folder = document.path.absolute().parent
    base = (folder / config.base_dir).resolve() if config.base_dir else folder
    record_root = config.experiment_dir if config.experiment_dir != "auto" else DEFAULT_ROOT
    return Experiment(
        ajet=config,
        sections={name: value for name, value in tree.items() if name not in roots},
        backbone_overrides={name: value for name, value in tree.items() if name in roots},
        name=_choose_run_name(config, document, layers),
        yaml_path=document.path.absolute(),
        yaml_text=hide_secrets(document),
        overrides=tuple(overrides),
        base=base,
        root=(Path(exp_dir) if exp_dir is not None else Path(record_root)).expanduser().absolute(),
        layers=layers,
        raw=raw,
    )


def _choose_backbone(document: Document, overrides: Sequence[str], flag: str | None) -> Descriptor:
    """Return the backbone named by the flag, else by the last override, the YAML or the default.

    Raises:
        ConfigError: There is no such backbone; the error names the place of the choice.
    """
    path = ("ajet", "backbone")
    matching = parse_overrides(
        [text for text in overrides if find_overridden_key(text) == path], roots=(), backbones=()
    )
    override = matching[-1] if matching else None
    ajet = document.tree.get("ajet")
    yaml_value = ajet.get("backbone") if isinstance(ajet, dict) else None
    name = flag or (override and override.value) or yaml_value or AjetConfig.model_fields["backbone"].default
    try:
        return find_backbone(str(name))
    except ConfigError as error:
        if error.where:
            raise
        location = f"--backbone {flag}" if flag else f"override {override.written}" if override else ""
        raise ConfigError(
            error.what, where=location or document.locate(path, value=True), expected=error.expected, do=error.do
        ) from None


def _choose_preset(document: Document, overrides: Sequence[str]) -> str | None:
    """Return the preset named by the last override, else by the YAML, or None without an existing preset."""
    matching = parse_overrides(
        [override for override in overrides if find_overridden_key(override) == PRESET], roots=(), backbones=()
    )
    preset: Any = document.tree
    for name in PRESET:
        preset = preset.get(name) if isinstance(preset, dict) else None
    preset = matching[-1].value if matching else preset
    return preset if isinstance(preset, str) and find_preset(preset).is_file() else None


def _choose_run_name(config: AjetConfig, document: Document, layers: Layers) -> str:
    """Return the run's name, which must be usable as a folder's name.

    `read_yaml_name`, the default of `experiment_name`, stands for the name of the YAML file.
    """
    name = config.experiment_name
    name = document.path.stem if name == "read_yaml_name" else name
    name = name.replace("|", "-")
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        raise ConfigError(
            f"ajet.experiment_name is {name!r}.",
            where=layers.locate(("ajet", "experiment_name"), value=True),
            expected="a name that can be the name of a folder, without / and ..",
        )
    return name


def _find_local_path(text: str, base: Path) -> Path | None:
    """Return the absolute path of an existing file or folder, sought in `base` and the working directory, or None."""
    path = Path(text).expanduser()
    for candidate in (base / path, Path.cwd() / path):
        if candidate.exists():
            return candidate.resolve()
    return None


def _settle_path(text: str, base: Path) -> str:
    """Return an existing local path as absolute path; other texts, such as hub names, are unchanged."""
    local_path = None if text.startswith("embedded:") else _find_local_path(text, base)
    return str(local_path) if local_path is not None else text


def _settle_reference(text: str, base: Path) -> str:
    """Return a reference to a file as `/absolute/path.py->NAME`; other references are unchanged."""
    file = find_referenced_file(text, base) if is_reference(text) else None
    return f"{file}->{parse_reference(text).name}" if file is not None else text


def _reveal_secrets(value: Any) -> Any:
    """Return the value with each SecretStr replaced by its text."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {name: _reveal_secrets(item) for name, item in value.items()}
    return value


def _get_node(tree: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path of nested mappings."""
    for name in path:
        tree = tree[name]
    return tree


def _set_node(tree: Any, path: tuple[str, ...], value: Any) -> None:
    """Set the value at a path of nested mappings."""
    _get_node(tree, path[:-1])[path[-1]] = value
