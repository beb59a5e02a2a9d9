"""Plugin: a package's description of what it adds to ajet (its parts).

A part is something that a YAML selects by name, such as an algorithm, a reader or a judge. A package that extends ajet
has a module with a `Plugin`, registered in the entry-point group `ajet.plugins`. ajet's own parts are registered the
same way. Invariant: a `Plugin` holds names, help lines and references `module:attribute`. Reading it imports only its
module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, get_args

GROUP = "ajet.plugins"
"""Entry-point group of a distribution's plug-ins: `NAME = package.plugin:PLUGIN`."""
Kind = Literal["algorithm", "loss", "tracker", "isolation", "store", "reader", "workflow", "scorer", "sandbox"]
"""Kinds of parts that a key names or refers to by a reference of the user."""
KINDS: tuple[Kind, ...] = get_args(Kind)
NamedKind = Literal[
    Kind,
    "backbone",
    "engine",
    "embedder",
    "judge",
    "train_engine",
    "environment",
    "environment_file",
    "environment_family",
]
"""All kinds of parts with a name."""


@dataclass(frozen=True, slots=True)
class PluginPart:
    """A part that a YAML selects by name (an algorithm, a reader, a judge), described without importing its code."""

    code: str
    """Reference to the part's class or function."""
    variables: tuple[str, ...] = ()
    """Environment variables read by the part, passed on by a cluster job."""
    interactive: bool = True
    """False if the part cannot run agents of the running program or notebook."""
    first_key: tuple[str, str] | None = None
    """Required key of the section of the part's name, and a description of the value."""
    scorer: str = ""
    """For a task reader: the scorer of its rows if neither workflow nor judge decides."""
    prepare: str = ""
    """For a judge: reference to a function `(experiment, run or None)`, called before a run plays, once services
    answer."""
    schemes: tuple[str, ...] = ()
    """For a store shared by processes: schemes of its addresses; `code` is then a `StoreDriver`."""


MAIN_PANEL = "Commands"
REMOTE_PANEL = "Remote agents, samplers and clusters"
RECORDS_PANEL = "Records"
JUDGES_PANEL = "Data and judges"
EXTENSIONS_PANEL = "Extensions"
"""Headings of `ajet --help`, in which commands of several plug-ins stand together."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the program `ajet` that a plug-in adds; its code is imported when it is called."""

    code: str
    """Reference to a function for typer, or to a `typer.Typer` with subcommands."""
    help: str
    panel: str = "More commands"
    """Heading above the command in `ajet --help`. `MAIN_PANEL` holds the twelve that most users need."""


@dataclass(frozen=True, slots=True)
class LaunchFlag:
    """A flag `--with-NAME` of a launch, which a plug-in adds."""

    help: str
    around: str = ""
    """Reference to a function from the `RunDirectory` to a context manager around the run.

    "" if the backbone's runner reads the flag.
    """
    needs: str = ""
    """Backbone capability required for an effect of the flag."""
    remote: bool = False
    """True if the run uses other machines, so local GPUs do not matter."""


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """The keys that a plug-in adds to the configuration: the section, and the pydantic model of the keys."""

    path: str
    """The section below `ajet` (for example `environment`), or "" for `ajet` itself."""
    model: str
    """Reference to a subclass of `ajet.config.schema.extended.PluginKeys`."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """Everything that one package adds to ajet, by kind.

    Values of a table are references `module:attribute`, or a `PluginPart`.
    """

    name: str
    about: str
    """Line in `ajet plugins` for the plug-in."""
    packages: tuple[str, ...] = ()
    """Importable names of the third-party packages needed by the code."""
    extra: str = ""
    """Extra of the distribution with the needed packages."""

    backbones: Mapping[str, str] = field(default_factory=dict)
    """References to `ajet.config.backbones.Descriptor` objects, in modules that import no training code."""
    algorithms: Mapping[str, str | PluginPart] = field(default_factory=dict)
    losses: Mapping[str, str | PluginPart] = field(default_factory=dict)
    trackers: Mapping[str, str | PluginPart] = field(default_factory=dict)
    isolations: Mapping[str, str | PluginPart] = field(default_factory=dict)
    stores: Mapping[str, str | PluginPart] = field(default_factory=dict)
    readers: Mapping[str, str | PluginPart] = field(default_factory=dict)
    workflows: Mapping[str, str | PluginPart] = field(default_factory=dict)
    scorers: Mapping[str, str | PluginPart] = field(default_factory=dict)
    judges: Mapping[str, str | PluginPart] = field(default_factory=dict)
    """Values of `task_judge.judge_type`: functions `(experiment) -> Judging | None`; None leaves the decision to the
    scorers or the task reader's judge."""
    fallback_judges: tuple[str, ...] = ()
    """References to functions `(experiment) -> Judging | None` for a run without any other judge."""
    sandboxes: Mapping[str, str | PluginPart] = field(default_factory=dict)
    """Values of `environment.sandbox`: classes with the methods of `ajet.schema.sandbox.SandboxFactory`."""
    engines: Mapping[str, str | PluginPart] = field(default_factory=dict)
    """Values of `rollout.engine`: classes with the methods of `ajet.engine.drivers.EngineDriver`."""
    embedders: Mapping[str, str | PluginPart] = field(default_factory=dict)
    """Local text embedding models (`embedded:NAME`): classes without arguments."""
    train_engines: Mapping[str, str] = field(default_factory=dict)
    """Values of `train_engine_name` in AWorld's `AgentTrainer`: subclasses of `TrainerProcessor`."""
    environments: Mapping[str, str | PluginPart] = field(default_factory=dict)
    """Worlds of `environment.use: NAME:…`: functions `(use, base) -> ChosenEnvironment`
    (`ajet.environment.services.chosen`). `class` is for references to the user's classes."""
    environment_files: Mapping[str, str] = field(default_factory=dict)
    """Environments of `ajet env up NAME`: references to the path of a description file."""
    environment_families: Mapping[str, str] = field(default_factory=dict)
    """Sections of an environment file for tool servers: `ajet_environments.deployment.description.EnvironmentFamily`.
    """
    services: tuple[str, ...] = ()
    """Functions `(experiment) -> Iterable[RequiredService]`: the services needed at the start of a run."""
    run_hooks: tuple[str, ...] = ()
    """References to `ajet.commands.services.RunHook` functions: context managers around a run."""
    step_observers: tuple[str, ...] = ()
    """References to classes of `ajet.train.step.StepObserver`: metrics of each training step."""
    doctor_checks: Mapping[str, str] = field(default_factory=dict)
    """Sections of `ajet doctor`: functions `(experiment, model) -> list[Finding]`.

    `experiment` is None without a YAML, `model` is the command line's model or None. A section without findings is not
    printed.
    """
    commands: Mapping[str, Command] = field(default_factory=dict)
    launch_flags: Mapping[str, LaunchFlag] = field(default_factory=dict)
    """Flags of a launch by name, without `--with-`."""
    config_keys: tuple[ConfigKeys, ...] = ()
    exports: Mapping[str, str] = field(default_factory=dict)
    """Names below `ajet` for users' imports: `NAME` for `from ajet import NAME`, `workflow.NAME` for `from
    ajet.workflow import NAME`."""
    failure_hints: Mapping[str, str] = field(default_factory=dict)
    """Advice on failed attempts by kind (for example an exception's class).

    `KIND of CLASS` matches workflows that are or extend CLASS.
    """
    start: str = ""
    """Reference to a function without arguments, called once in each process of a run before the user's code is
    imported."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Renamed references of older YAMLs, each with the present reference."""

    def list_parts(self, kind: NamedKind) -> dict[str, PluginPart]:
        """Return the plug-in's parts of one kind (such as "algorithm"), by the name that a YAML uses."""
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
    "engine": "engines",
    "embedder": "embedders",
    "judge": "judges",
    "train_engine": "train_engines",
    "environment": "environments",
    "environment_file": "environment_files",
    "environment_family": "environment_families",
}
NAMED_KINDS: tuple[NamedKind, ...] = tuple(_TABLES)


def load_code(reference: str) -> Any:
    """Import and return the object of a plug-in's reference `module:attribute`.

    References in a user's YAML are resolved by `resolve_reference` instead.
    """
    module, _, attribute = reference.replace("->", ":").partition(":")
    return getattr(import_module(module), attribute)


def spell_reference(kind: NamedKind) -> str:
    """Return an example of a reference to the user's own code, such as `judge.py->MyJudge`."""
    return f"{kind}.py->My{kind.capitalize()}"
