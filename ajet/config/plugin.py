"""The plug-in contract: what a package says about itself so that ajet finds its parts by name.

A package that extends ajet has a module with one `Plugin` and names it in the entry-point group `ajet.plugins`. Parts
that ship with ajet are registered by the same object. Invariant: a `Plugin` holds names, help lines and references
`module:attribute`; reading it imports nothing but this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, get_args

GROUP = "ajet.plugins"
"""Entry-point group of a distribution's plug-ins: `NAME = package.plugin:PLUGIN`."""
Kind = Literal["algorithm", "loss", "tracker", "isolation", "store", "reader", "workflow", "scorer", "sandbox"]
"""Kinds of parts that a key names, or of which it may refer to one of the user's own."""
KINDS: tuple[Kind, ...] = get_args(Kind)
NamedKind = Literal[
    Kind,
    "backbone",
    "embedder",
    "judge",
    "train_engine",
    "environment",
    "environment_file",
    "environment_family",
]
"""All kinds of parts that have a name."""


@dataclass(frozen=True, slots=True)
class PluginPart:
    """A part that a YAML can name, known without importing it."""

    code: str
    """Reference to its class or function."""
    variables: tuple[str, ...] = ()
    """Environment variables that it reads; a job on a cluster passes them on."""
    interactive: bool = True
    """False if it cannot run agents that are defined in the running program or notebook."""
    first_key: tuple[str, str] | None = None
    """Required key of the section of its name, and what belongs there."""
    scorer: str = ""
    """Of a task reader: the scorer of its rows if neither workflow nor judge decides."""
    prepare: str = ""
    """Of a judge: reference to a function `(experiment, run or None)`, called before a run begins to play, when its
    services answer."""
    schemes: tuple[str, ...] = ()
    """Of a store that several processes share: schemes of its addresses; `code` is then its `StoreDriver`."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `ajet`, built only when it is called."""

    code: str
    """Reference to a function that typer can call, or to a `typer.Typer` with subcommands."""
    help: str
    """Its line in `ajet --help`."""


@dataclass(frozen=True, slots=True)
class LaunchFlag:
    """A flag `--with-NAME` of a launch."""

    help: str
    """Its line in `ajet --help`."""
    around: str = ""
    """Reference to a function that takes the `RunDirectory` and returns a context manager, entered before the run
    starts anything; "" if the backbone's runner reads the flag."""
    needs: str = ""
    """Capability of a backbone without which the flag has no effect."""
    remote: bool = False
    """True if the run takes place on other machines, so that this one's GPUs say nothing of it."""


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """Keys that a plug-in adds to a section of the configuration."""

    path: str
    """The section below `ajet`, such as `environment`; "" for `ajet` itself."""
    model: str
    """Reference to a subclass of `ajet.config.schema.extended.PluginKeys`."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """What one package brings. A table's values are references `module:attribute`, or a `PluginPart` that says more."""

    name: str
    about: str
    """One line for `ajet plugins`."""
    packages: tuple[str, ...] = ()
    """Importable names of third-party packages that its code needs."""
    extra: str = ""
    """Extra of its distribution that installs them."""

    backbones: Mapping[str, str] = field(default_factory=dict)
    """References to `ajet.config.backbones.Descriptor` objects, whose modules import no training code."""
    algorithms: Mapping[str, str | PluginPart] = field(default_factory=dict)
    losses: Mapping[str, str | PluginPart] = field(default_factory=dict)
    trackers: Mapping[str, str | PluginPart] = field(default_factory=dict)
    isolations: Mapping[str, str | PluginPart] = field(default_factory=dict)
    stores: Mapping[str, str | PluginPart] = field(default_factory=dict)
    readers: Mapping[str, str | PluginPart] = field(default_factory=dict)
    workflows: Mapping[str, str | PluginPart] = field(default_factory=dict)
    scorers: Mapping[str, str | PluginPart] = field(default_factory=dict)
    judges: Mapping[str, str | PluginPart] = field(default_factory=dict)
    """Values of `task_judge.judge_type`: functions `(experiment) -> Judging | None`; None leaves it to the scorers, or
    to the task reader's own judge."""
    fallback_judges: tuple[str, ...] = ()
    """References to functions `(experiment) -> Judging | None`, for a run that has no judge otherwise."""
    sandboxes: Mapping[str, str | PluginPart] = field(default_factory=dict)
    """Values of `environment.sandbox`: classes with the methods of `ajet.schema.sandbox.SandboxFactory`."""
    embedders: Mapping[str, str | PluginPart] = field(default_factory=dict)
    """Models of this machine that embed texts (`embedded:NAME`): classes without arguments."""
    train_engines: Mapping[str, str] = field(default_factory=dict)
    """Values of `train_engine_name` in AWorld's `AgentTrainer`: subclasses of `TrainerProcessor`."""
    environments: Mapping[str, str | PluginPart] = field(default_factory=dict)
    """Worlds that `environment.use` names as `NAME:…`: functions `(use, base) -> ChosenEnvironment`
    (`ajet.environment.services.chosen`). `class` serves a reference to a class of the user's own."""
    environment_files: Mapping[str, str] = field(default_factory=dict)
    """Environments that `ajet env up NAME` starts: references to the path of the file that describes one."""
    environment_families: Mapping[str, str] = field(default_factory=dict)
    """Sections of such a file that name tool servers: `ajet_environments.deployment.description.EnvironmentFamily`."""
    services: tuple[str, ...] = ()
    """References to functions `(experiment) -> Iterable[Service]`: what a run must reach before it begins."""
    run_hooks: tuple[str, ...] = ()
    """References to `ajet.commands.run_hooks.RunHook` functions: context managers around a run."""
    step_observers: tuple[str, ...] = ()
    """References to classes of `ajet.train.step.StepObserver`: numbers of each training step."""
    doctor_checks: Mapping[str, str] = field(default_factory=dict)
    """Sections of `ajet doctor`: functions `(experiment, model) -> list[Finding]`. `experiment` is None without a YAML,
    `model` is the one of the command line or None. Without findings a section is left out."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    launch_flags: Mapping[str, LaunchFlag] = field(default_factory=dict)
    """Flags of a launch by their names without `--with-`."""
    config_keys: tuple[ConfigKeys, ...] = ()
    exports: Mapping[str, str] = field(default_factory=dict)
    """Names below `ajet` by which users import its code: `NAME` for `from ajet import NAME`, and `workflow.NAME` for
    `from ajet.workflow import NAME`."""
    failure_hints: Mapping[str, str] = field(default_factory=dict)
    """What to do about a failed attempt, by its kind, such as the name of an exception's class; `KIND of CLASS` for
    attempts of a workflow that is or extends CLASS."""
    start: str = ""
    """Reference to a function without arguments, called once in each process of a run, before code that the YAML names
    is imported there: the command or script that launches it, workers, samplers."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """References that YAMLs may still have, each with the one that it stands for today."""

    def list_parts(self, kind: NamedKind) -> dict[str, PluginPart]:
        """Return its parts of a kind by name."""
        table: Mapping[str, str | PluginPart] = getattr(self, _TABLES[kind])
        return {name: PluginPart(part) if isinstance(part, str) else part for name, part in table.items()}


_TABLES: Mapping[NamedKind, str] = {
    "algorithm": "algorithms",
    "loss": "losses",
    "tracker": "trackers",
    "isolation": "isolations",
    "store": "stores",
    "reader": "readers",
    "workflow": "workflows",
    "scorer": "scorers",
    "sandbox": "sandboxes",
    "backbone": "backbones",
    "embedder": "embedders",
    "judge": "judges",
    "train_engine": "train_engines",
    "environment": "environments",
    "environment_file": "environment_files",
    "environment_family": "environment_families",
}
NAMED_KINDS: tuple[NamedKind, ...] = tuple(_TABLES)


def load_code(reference: str) -> Any:
    """Return what a plug-in's reference names; `resolve_reference` is for references that a user wrote."""
    module, _, attribute = reference.replace("->", ":").partition(":")
    return getattr(import_module(module), attribute)


def spell_reference(kind: NamedKind) -> str:
    """Return the form of a reference to the user's own part of a kind."""
    return f"{kind}.py->My{kind.capitalize()}"
