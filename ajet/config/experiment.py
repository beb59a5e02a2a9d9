"""Experiment: one YAML with its overrides, composed, resolved and typed.

Invariant: `ajet` is the only thing that our code reads; the user's own sections reach the workflow untouched;
`resolved_yaml()` loads again to the same experiment wherever the file lies; no secret is in anything written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from ajet.config.backbones import Descriptor, described
from ajet.config.compose import ABSENT, Layers, collect_layers, compose
from ajet.config.document import Document, dump_yaml, leaves, parse_document, read_document
from ajet.config.dotenv import load_dotenv_files
from ajet.config.idle import RESOLVED, Idle, idle_keys, idle_reason, users_layers
from ajet.config.locations import preset_file
from ajet.config.overrides import key_of, parse_overrides
from ajet.config.readiness import names_tasks, require_ready, value_at
from ajet.config.references import located_file, parse_reference, within
from ajet.config.resolution import HIDDEN, from_environment, is_secret, resolve, unresolved, without_secrets, writable
from ajet.config.schema import AjetConfig
from ajet.config.schema.base import walk
from ajet.config.schema.choices import is_reference
from ajet.config.schema.extended import config_model
from ajet.config.schema.trainer_common import STALE_CAP
from ajet.config.shapes import roots_of, take_apart
from ajet.config.validate import validated
from ajet.config.view import View
from ajet.schema.errors import ConfigError

DEFAULT_ROOT = "launcher_record"
PRESET = ("ajet", "trainer_common", "algorithm", "preset")


@dataclass(frozen=True)
class Experiment:
    """What a run is made from. `load_experiment` and `Experiment.from_dict` make them."""

    ajet: AjetConfig
    sections: dict[str, Any]
    """The user's own root names."""
    backbone_overrides: dict[str, Any]
    """Root names of backbones' own sections: as written, interpolations unresolved."""
    name: str
    yaml_path: Path
    yaml_text: str = field(repr=False)
    """As given, but for literal secrets."""
    overrides: tuple[str, ...]
    base: Path
    """Folder in which relative references and paths are looked up first."""
    root: Path
    """Folder that holds the runs."""
    layers: Layers = field(repr=False)
    raw: dict[str, Any] = field(repr=False)
    """The composed tree before interpolations were resolved."""

    @classmethod
    def from_dict(
        cls,
        tree: Mapping[str, Any],
        *,
        base: Path,
        exp_dir: Path | None = None,
        in_python: bool = False,
        under: Document | None = None,
    ) -> Experiment:
        """The experiment that a YAML with this content, in the folder `base`, would give. `in_python`: nobody has such
        a file, and errors name none, but `under` for what stands there already. Raises ConfigError."""
        named = (tree.get("ajet") or {}).get("experiment_name") or "experiment"
        path = Path(base).absolute() / f"{named}.yaml"
        document = replace(parse_document(dump_yaml(tree), path), in_python=in_python, under=under)
        return _build(document, exp_dir=exp_dir)

    @classmethod
    def from_text(cls, yaml: str, path: Path, *, root: Path) -> Experiment:
        """The experiment that a file `path` with this text would give, in another process or on another machine; its
        runs lie in `root`. Raises ConfigError."""
        return _build(parse_document(yaml, path), exp_dir=root)

    @property
    def backbone(self) -> Descriptor:
        """What is known of the backbone that `ajet.backbone` names. Raises ConfigError where it is not installed."""
        return described(self.ajet.backbone)

    @property
    def config(self) -> View:
        """Everything, as `tuner.config` and a judge's `self.config` give it: read-only, with attribute access."""
        ajet = {**self.ajet.model_dump(), "base_dir": str(self.base)}
        return View({"ajet": ajet, **self.sections, **self.backbone_overrides})

    def require_ready(self, *, serving: bool = False, evaluating: bool = False, looking: bool = False) -> None:
        """Raises ConfigError when no run can start: something is missing, or chosen that this version lacks.
        `serving`: agents and tasks may come from outside. `evaluating`: no training task is read. `looking`: nothing is
        launched now, and who does may name a store that samplers fill."""
        (*_, users) = (layer.document for layer in self.layers.stack if layer.document is not None)
        written = str(self.yaml_path) if self.yaml_path.exists() else "command line"
        told_in = users.where(()) if users.in_python else written
        require_ready(self.ajet, self.layers, told_in, serving=serving, evaluating=evaluating, looking=looking)

    @property
    def names_tasks(self) -> bool:
        """Whether a task reader is configured."""
        return names_tasks(self.ajet)

    def idle(self, *, serving: bool = False) -> list[Idle]:
        """What was set and has no effect here, each with the place and the reason; a run says so once. `serving`: in
        `ajet serve`."""
        return idle_keys(self.ajet, self.layers, serving=serving)

    def resolved_yaml(self, own: Callable[[str], str] = str, hide: Callable[[str], str] = lambda secret: HIDDEN) -> str:
        """The whole config with every value resolved; `ajet --conf` on it repeats the run, from any folder. `own` and
        `hide`: see `writable`."""
        tree = {"ajet": self.settled(), **self.sections, **self.backbone_overrides}
        head = f"{RESOLVED}{self.name}: `ajet --conf` on this file repeats the run.\n"
        return head + dump_yaml(writable(tree, self.raw, backbones=self.backbone_overrides, own=own, hide=hide))

    def training_relevant(self) -> dict[str, Any]:
        """The flat settings in which two runs must agree for one to continue the other: without names, logging,
        debugging, the gateway, places of runs, and how often things are saved or validated. What lies in the project
        is named from its folder on: moved as a whole, it is the same."""
        settled = self.settled()
        for path, _, notes in walk(config_model()):
            if notes.get("kind") in ("path", "reference"):
                _set(settled, path, within(_at(settled, path), self.base))
        flat: dict[str, Any] = {}
        for path, _, notes in walk(config_model()):
            if notes.get("training", True) and self._bears(notes):
                flat[f"ajet.{'.'.join(path)}"] = _at(settled, path)
        if self.ajet.trainer_common.optim.lr_schedule != "constant":
            for name in ("total_epochs", "total_training_steps"):
                flat[f"ajet.trainer_common.{name}"] = settled["trainer_common"][name]
        own = dict(self.sections)
        if self.backbone.roots:
            own.update(self.backbone_overrides)
        hidden = from_environment(self.raw, self.backbone_overrides)
        for path, value in leaves(own):
            if path not in hidden and not is_secret(path):
                flat[".".join(map(str, path))] = value
        return flat

    def given(self) -> list[str]:
        """The keys below `ajet` that the person set, in the YAML or beside it; all others have defaults."""
        users = users_layers(self.layers)
        return [
            ".".join(("ajet", *path))
            for path, _, _ in walk(config_model())
            if any(layer.value(("ajet", *path)) is not ABSENT for layer in users)
        ]

    def with_defaults(self, values: Mapping[str, Any]) -> Experiment:
        """This experiment with other values, as `training_relevant` names them, for keys that nobody set. Raises
        ValueError where this version does not take one."""
        ajet = self.ajet.model_copy(deep=True)
        for name, value in values.items():
            *sections, last = name.split(".")[1:]
            node: Any = ajet
            for section in sections:
                node = getattr(node, section)
            setattr(node, last, value)
        return replace(self, ajet=ajet)

    def served(self) -> Experiment:
        """This experiment behind `ajet serve`, whose clients go on during updates: `is_cap: auto` is a cap there."""
        settings = self.ajet.trainer_common.algorithm
        if settings.is_cap != "auto" or settings.old_policy == "behaviour":
            return self
        return self.with_defaults({"ajet.trainer_common.algorithm.is_cap": STALE_CAP})

    def _bears(self, notes: dict[str, Any]) -> bool:
        """Whether a key changes what is trained, in a launch or in `ajet serve`: a reader that was not chosen changes
        nothing. Where nothing is trained, nothing is continued: what would be compared is what any backbone reads."""
        backbone = self.backbone if "trains" in self.backbone.can else Descriptor("", "")
        ways = (False,) if self.ajet.sft.objective is not None else (False, True)
        return any(idle_reason(notes, self.ajet, backbone, serving=serving) is None for serving in ways)

    def settled(self) -> dict[str, Any]:
        """The typed config as plain values in which nothing depends on the YAML's name or place, nor on what a later
        version takes `is_cap: auto` for."""
        tree = _plain(self.ajet.model_dump())
        tree.update(experiment_name=self.name, experiment_dir=str(self.root), base_dir=str(self.base))
        tree["trainer_common"]["algorithm"]["is_cap"] = self.ajet.trainer_common.importance_cap
        for path, _, notes in walk(config_model()):
            value = value_at(self.ajet, path)
            if notes.get("kind") == "path" and value:
                found = [_settled_path(each, self.base) for each in ([value] if isinstance(value, str) else value)]
                _set(tree, path, found[0] if isinstance(value, str) else found)
            elif notes.get("kind") == "reference" and isinstance(value, (str, list)):
                named = [_settled_reference(each, self.base) for each in ([value] if isinstance(value, str) else value)]
                _set(tree, path, named[0] if isinstance(value, str) else named)
        return tree


def load_experiment(
    conf: Path | str,
    *,
    backbone: str | None = None,
    overrides: Sequence[str] = (),
    exp_dir: Path | None = None,
) -> Experiment:
    """Read a YAML, lay it over the defaults and the overrides over it, resolve and check it.

    Loads `.env` from the working directory and from beside the YAML first (existing variables win). Raises
    ConfigError; what a run needs beyond that is `Experiment.require_ready`'s to say.
    """
    path = Path(conf).expanduser()
    load_dotenv_files([Path.cwd(), path.absolute().parent])
    return _build(read_document(path), backbone=backbone, overrides=overrides, exp_dir=exp_dir)


def defaults_only(
    *, backbone: str | None = None, overrides: Sequence[str] = (), name: str = "defaults", exp_dir: Path | None = None
) -> Experiment:
    """The defaults with overrides, as an empty YAML `name`.yaml in the working directory would give them."""
    path = Path.cwd() / f"{name}.yaml"
    return _build(parse_document("", path), backbone=backbone, overrides=overrides, exp_dir=exp_dir)


def _build(
    document: Document,
    *,
    backbone: str | None = None,
    overrides: Sequence[str] = (),
    exp_dir: Path | None = None,
) -> Experiment:
    chosen = _chosen(document, overrides, backbone)
    roots = roots_of(chosen)
    parts = take_apart(document, roots)
    parsed = parse_overrides(overrides, roots={*parts.sections, *parts.backbone}, backbones=roots)
    preset = _preset(document, overrides)
    below = [*([chosen.layer] if chosen.layer else []), *([preset_file(preset)] if preset else [])]
    layers = collect_layers(document, parts, parsed, chosen=below, flag=backbone)
    composed = compose(layers, parsed, chosen=below, flag=backbone)
    raw = unresolved(composed)
    tree = resolve(composed, raw, layers, roots)
    if not isinstance(tree["ajet"], dict):
        raise ConfigError(f"`ajet` is {tree['ajet']!r}, not a mapping.", where=layers.where(("ajet",), value=True))
    config = validated(tree, layers)
    if config.trainer_common.algorithm.preset != preset:
        raise ConfigError(
            f"The preset is {config.trainer_common.algorithm.preset!r} only once everything is put together.",
            where=layers.where(PRESET, value=True),
            expected=f"its name where it is set: {'.'.join(PRESET)}: minirl",
        )
    del tree["ajet"]
    folder = document.path.absolute().parent
    base = (folder / config.base_dir).resolve() if config.base_dir else folder
    given = config.experiment_dir if config.experiment_dir != "auto" else DEFAULT_ROOT
    return Experiment(
        ajet=config,
        sections={name: value for name, value in tree.items() if name not in roots},
        backbone_overrides={name: value for name, value in tree.items() if name in roots},
        name=_run_name(config, document, layers),
        yaml_path=document.path.absolute(),
        yaml_text=without_secrets(document),
        overrides=tuple(overrides),
        base=base,
        root=(Path(exp_dir) if exp_dir is not None else Path(given)).expanduser().absolute(),
        layers=layers,
        raw=raw,
    )


def _chosen(document: Document, overrides: Sequence[str], flag: str | None) -> Descriptor:
    """The backbone that the flag, the last override, the YAML or else the default names. Raises ConfigError."""
    path = ("ajet", "backbone")
    named = parse_overrides([each for each in overrides if key_of(each) == path], roots=(), backbones=())
    override = named[-1] if named else None
    ajet = document.tree.get("ajet")
    written = ajet.get("backbone") if isinstance(ajet, dict) else None
    name = flag or (override and override.value) or written or AjetConfig.model_fields["backbone"].default
    try:
        return described(str(name))
    except ConfigError as error:
        if error.where:
            raise
        where = f"--backbone {flag}" if flag else f"override {override.written}" if override else ""
        raise ConfigError(
            error.what, where=where or document.where(path, value=True), expected=error.expected, do=error.do
        ) from None


def _preset(document: Document, overrides: Sequence[str]) -> str | None:
    """The one that the last override or else the YAML names, if there is one of that name."""
    named = parse_overrides([each for each in overrides if key_of(each) == PRESET], roots=(), backbones=())
    found: Any = document.tree
    for name in PRESET:
        found = found.get(name) if isinstance(found, dict) else None
    found = named[-1].value if named else found
    return found if isinstance(found, str) and preset_file(found).is_file() else None


def _run_name(config: AjetConfig, document: Document, layers: Layers) -> str:
    """`read_yaml_name` takes the file's base name. A name is one folder's name."""
    name = config.experiment_name
    name = document.path.stem if name == "read_yaml_name" else name
    name = name.replace("|", "-")
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        raise ConfigError(
            f"ajet.experiment_name is {name!r}.",
            where=layers.where(("ajet", "experiment_name"), value=True),
            expected="the name of one folder",
        )
    return name


def _local(text: str, base: Path) -> Path | None:
    path = Path(text).expanduser()
    for candidate in (base / path, Path.cwd() / path):
        if candidate.exists():
            return candidate.resolve()
    return None


def _settled_path(text: str, base: Path) -> str:
    found = None if text.startswith("embedded:") else _local(text, base)
    return str(found) if found is not None else text


def _settled_reference(text: str, base: Path) -> str:
    file = located_file(text, base) if is_reference(text) else None
    return f"{file}->{parse_reference(text).name}" if file is not None else text


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def _set(tree: Any, path: tuple[str, ...], value: Any) -> None:
    _at(tree, path[:-1])[path[-1]] = value
