"""Finds the plug-ins of this process and their parts (algorithms, readers, judges, … selected by name).

Plug-ins of the distribution `ajet` are always known. Those of other distributions are loaded once, for an unknown name
or a full list. A process started by ajet skips the search, and loads the plug-ins listed in AJET_PLUGINS by its parent.

Invariant: a name of a kind belongs to a single plug-in. A plug-in that fails to load or claims a taken name is reported
and ignored. Commands without a need for the plug-in still work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, Literal

from ajet._version import __version__
from ajet.config.locations import INSTALL_ROOT
from ajet.config.plugin import GROUP, NAMED_KINDS, Command, LaunchFlag, NamedKind, Plugin, PluginPart, load_code

KERNEL = "ajet.kernel:PLUGIN"
"""The parts of the package `ajet`."""
DISTRIBUTION = "ajet"
VARIABLE = "AJET_PLUGINS"
"""Environment variable with the references of other distributions' plug-ins, separated by commas, for started
processes."""


@dataclass(frozen=True)
class LoadedPlugin:
    """A plug-in that was found, with its description, or with the reason why it could not be loaded."""

    place: str
    """Reference to the `Plugin` object of the package."""
    distribution: str
    plugin: Plugin | None
    problem: str = ""


@dataclass(frozen=True)
class AddedKeys:
    """The configuration keys that one plug-in adds to a section, with their imported pydantic model."""

    plugin: str
    path: str
    model: type[Any]


_started: set[str] = set()
"""References of plug-ins with `Plugin.start` already called in the process."""
_start_lock = RLock()
ReferenceTable = Literal["services", "run_hooks", "fallback_judges", "step_observers"]
"""Fields of `Plugin` with unnamed references."""
PartIndex = dict[NamedKind, dict[str, PluginPart]]
"""Parts by kind and name."""


def find_parts(kind: NamedKind) -> dict[str, PluginPart]:
    """Return the parts of one kind that ship with ajet, by the name that a YAML uses."""
    return _index_shipped()[kind]


def find_all_parts(kind: NamedKind) -> dict[str, PluginPart]:
    """Return the parts of one kind of all installed plug-ins, by the name that a YAML uses.

    The first call may search the installed distributions.
    """
    return _index_all(tuple(sys.path), os.environ.get(VARIABLE))[kind]


def find_part(kind: NamedKind, name: object) -> PluginPart | None:
    """Return the part of a kind by its name in a YAML.

    None: no plug-in has the name, or it is a class or the user's own code (`file.py->Class`, `module:Class`).
    """
    if not isinstance(name, str) or "->" in name or ":" in name:
        return None
    return find_parts(kind).get(name) or find_all_parts(kind).get(name)


def list_first_names(kind: NamedKind) -> list[str]:
    """Return the main name of each part of one kind that ships with ajet, without aliases."""
    return list({part.code: name for name, part in reversed(find_parts(kind).items())}.values())[::-1]


def find_first_name(kind: NamedKind, name: str) -> str:
    """Return the main name of a part for a name or alias of it; an unknown name is returned unchanged."""
    part = find_part(kind, name)
    return (
        name
        if part is None
        else next(main_name for main_name, alias in find_all_parts(kind).items() if alias.code == part.code)
    )


def find_shared_store(scheme: str) -> PluginPart | None:
    """Return the store that serves addresses of this scheme, such as "mongodb", or None."""
    for find in (find_parts, find_all_parts):  # shipped ones first: all others take a search of the installation
        for part in find("store").values():
            if scheme in part.schemes:
                return part
    return None


def list_plugins() -> tuple[LoadedPlugin, ...]:
    """Return the plug-ins of all installed distributions, those of ajet first. One that fails to load has a problem."""
    return _list_all(tuple(sys.path), os.environ.get(VARIABLE))


@contextmanager
def hand_to_workers() -> Iterator[None]:
    """Within the block, processes that this one starts load the same plug-ins, without a search for them."""
    previous_value = os.environ.get(VARIABLE)
    shipped_places = {shipped_plugin.place for shipped_plugin in _list_shipped()}
    os.environ[VARIABLE] = ",".join(
        plugin.place for plugin in list_plugins() if plugin.plugin and plugin.place not in shipped_places
    )
    try:
        yield
    finally:
        if previous_value is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = previous_value


def list_versions() -> dict[str, str]:
    """Return the version of each loaded plug-in by its name; "" for one that is not installed as a package.

    Machines of a cluster compare these versions.
    """
    files = _find_entry_points(tuple(sys.path))
    installed = {entry_point: _read_version(file) for file in files for entry_point in _read_places(file)}
    installed |= {shipped.place: __version__ for shipped in _list_shipped()}
    return {
        plugin.plugin.name: installed.get(plugin.place, "") for plugin in list_plugins() if plugin.plugin is not None
    }


def find_renamed(reference: str) -> str:
    """Return the present reference for one in an older YAML, or the same if no plug-in has renamed it."""
    plugins = _list_usable()
    return next((plugin.renamed[reference] for plugin in plugins if reference in plugin.renamed), reference)


def load_export(name: str) -> Any:
    """Return the object that a plug-in exports below `ajet`, such as "workflow.MyAgent" for `ajet.workflow.MyAgent`.

    Raises:
        AttributeError: No plug-in exports the name.
    """
    for shipped in (True, False):  # without a search of the installation first
        for plugin in _list_usable(shipped=shipped):
            if name in plugin.exports:
                return load_code(plugin.exports[name])
    package, _, last = f"ajet.{name}".rpartition(".")
    raise AttributeError(f"module {package!r} has no attribute {last!r}")


def list_exports(package: str = "") -> list[str]:
    """Return the names that shipped plug-ins export in `ajet`, or in the package `ajet.PACKAGE`."""
    exports = [name.rpartition(".") for plugin in _list_usable(shipped=True) for name in plugin.exports]
    return [name for module, _, name in exports if module == package]


def find_failure_hint(kind: str, workflow: type[object] | None = None) -> str:
    """Return a plug-in's advice on a failed attempt, or "".

    Args:
        kind: Class of the exception, or another kind of failure.
        workflow: Class of the workflow. Advice for it or for a base class of it comes first.
    """
    hints = {key: hint for plugin in _list_usable() for key, hint in plugin.failure_hints.items()}
    classes = workflow.__mro__ if workflow is not None else ()
    return next((hints[key] for key in (*(f"{kind} of {base.__name__}" for base in classes), kind) if key in hints), "")


def list_references(table: ReferenceTable) -> list[str]:
    """Return the references in one field of all plug-ins."""
    return [reference for plugin in _list_usable() for reference in getattr(plugin, table)]


def load_references(table: ReferenceTable, kind_name: str) -> Iterator[Any]:
    """Yield the objects of the references in one field of all plug-ins. One that fails to load is logged and skipped.

    Args:
        table: The field of `Plugin`.
        kind_name: What the objects are, for the warning.
    """
    for reference in list_references(table):
        code, problem = try_load(reference)
        if problem:
            from loguru import logger

            logger.warning("ajet ignores the {} {}, because it cannot be loaded: {}", kind_name, reference, problem)
        else:
            yield code


def start_plugins() -> None:
    """Call the start function of each plug-in, once per process, before user code is imported.

    A failure is only a warning, because the run may not need the plug-in.
    """
    with _start_lock:
        for plugin in list_plugins():
            if plugin.plugin is not None and plugin.plugin.start and plugin.place not in _started:
                _started.add(plugin.place)
                _start_plugin(plugin.plugin)


def find_doctor_checks() -> dict[str, str]:
    """Return the references to the checks of `ajet doctor` of all plug-ins, by section."""
    return {title: check for plugin in _list_usable() for title, check in plugin.doctor_checks.items()}


def list_added_keys(*, shipped: bool = False) -> tuple[AddedKeys, ...]:
    """Return the configuration keys that plug-ins add. Keys whose model fails to load are left out.

    Args:
        shipped: True for plug-ins that ship with ajet only.
    """
    plugins = _list_usable(shipped=shipped)
    loaded = [(plugin.name, keys.path, _load_model(keys.model)) for plugin in plugins for keys in plugin.config_keys]
    return tuple(AddedKeys(name, path, model) for name, path, (model, _) in loaded if model is not None)


def describe_broken_keys(plugin: Plugin) -> str:
    """Return which configuration keys of the plug-in cannot be loaded and why, or ""."""
    problems = [(keys.path, _load_model(keys.model)[1]) for keys in plugin.config_keys]
    return "; ".join(
        f"keys of {'.'.join(filter(None, ['ajet', path]))}: {problem}" for path, problem in problems if problem
    )


def list_packages() -> list[str]:
    """Return the importable names of the packages that ship with ajet, `ajet` first."""
    return [*dict.fromkeys(plugin.place.partition(".")[0] for plugin in _list_shipped())]


@lru_cache(maxsize=1)
def list_package_roots() -> tuple[Path, ...]:
    """Return the folders of the packages that ship with ajet. Code in them is not the user's."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in list_packages()]
    return tuple(Path(file).resolve().parent for file in files if file is not None)


def find_commands() -> dict[str, Command]:
    """Return the commands of the shipped plug-ins, by name."""
    return {name: command for plugin in _list_usable(shipped=True) for name, command in plugin.commands.items()}


def find_all_commands() -> dict[str, Command]:
    """Return the commands of all plug-ins, by name. May search the installed distributions."""
    return {name: command for plugin in _list_usable() for name, command in plugin.commands.items()}


def find_launch_flags(*, shipped: bool = False) -> dict[str, LaunchFlag]:
    """Return the plug-ins' flags of a launch, by name without `--with-`.

    Args:
        shipped: True for plug-ins that ship with ajet only, without a search of the installation.
    """
    return {name: flag for plugin in _list_usable(shipped=shipped) for name, flag in plugin.launch_flags.items()}


def describe_broken() -> str:
    """Return a sentence on the plug-ins that cannot be loaded completely, or ""."""
    problems = [
        (plugin, plugin.problem or (describe_broken_keys(plugin.plugin) if plugin.plugin else ""))
        for plugin in list_plugins()
    ]
    broken = [f"{plugin.place} ({plugin.distribution}): {problem}" for plugin, problem in problems if problem]
    return f"These plug-ins could not be loaded: {'; '.join(broken)}." if broken else ""


@lru_cache(maxsize=1)
def _list_shipped() -> tuple[LoadedPlugin, ...]:
    """Return the plug-ins that ship with ajet, the kernel's own parts first."""
    places = _find_in_checkout() if _is_checkout() else _find_in_wheel()
    others = sorted(set(places) - {KERNEL})
    return _refuse_claimed_names(tuple(_load_plugin(entry_point, DISTRIBUTION) for entry_point in (KERNEL, *others)))


@lru_cache(maxsize=4)
def _list_all(path: tuple[str, ...], listed: str | None) -> tuple[LoadedPlugin, ...]:
    """Return the plug-ins of all distributions, those of ajet first.

    Args:
        path: `sys.path`, whose folders are searched; an argument so that the cache notices a change.
        listed: Value of AJET_PLUGINS, which replaces the search in a process that ajet started.
    """
    foreign = _load_foreign(path) if listed is None else _load_listed(listed)
    return _refuse_claimed_names((*_list_shipped(), *foreign))


def _list_usable(*, shipped: bool = False) -> list[Plugin]:
    """Return the descriptions of the plug-ins that could be loaded.

    Args:
        shipped: True for plug-ins that ship with ajet only.
    """
    loaded = _list_shipped() if shipped else list_plugins()
    return [entry.plugin for entry in loaded if entry.plugin is not None]


def _is_checkout() -> bool:
    """Return True if ajet runs from a clone of its repository."""
    return (INSTALL_ROOT / "plugins").is_dir() and (INSTALL_ROOT / "pyproject.toml").is_file()


def _find_in_checkout() -> Iterator[str]:
    """Yield the references of the plug-ins in a clone, which are usable without installation."""
    for file in (INSTALL_ROOT / "plugins").glob("*/plugin.py"):
        yield f"{file.parent.name}.plugin:PLUGIN"


def _find_in_wheel() -> Iterator[str]:
    """Yield the references of the plug-ins that ajet's own wheel registers."""
    for file in INSTALL_ROOT.glob(f"{DISTRIBUTION}-*.dist-info/entry_points.txt"):
        yield from _read_places(file)


def _load_listed(listed: str) -> Iterator[LoadedPlugin]:
    """Yield the plug-ins that the parent process lists in AJET_PLUGINS."""
    yield from (_load_plugin(entry_point, "the driver's list") for entry_point in listed.split(",") if entry_point)


def _load_foreign(path: tuple[str, ...]) -> Iterator[LoadedPlugin]:
    """Yield the plug-ins of other distributions in the folders of `sys.path`."""
    for file in _find_entry_points(path):
        yield from (_load_plugin(entry_point, file.parent.name.partition("-")[0]) for entry_point in _read_places(file))


def _find_entry_points(path: tuple[str, ...]) -> Iterator[Path]:
    """Yield the entry-point files of other distributions that register a plug-in of ajet.

    For 360 distributions the search takes 3 ms; `importlib.metadata.entry_points` takes 58 ms, a fourth of `ajet
    --help`.
    """
    for folder in dict.fromkeys(folder or "." for folder in path):
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            file = Path(folder, name, "entry_points.txt")
            is_foreign = name.endswith("-info") and not name.startswith(f"{DISTRIBUTION}-")
            if is_foreign and file.is_file() and f"[{GROUP}]" in file.read_text(encoding="utf-8"):
                yield file


def _read_version(file: Path) -> str:
    """Return a distribution's version from the folder name `NAME-VERSION.dist-info`."""
    return file.parent.name.partition("-")[2].rpartition(".")[0]


def _read_places(file: Path) -> list[str]:
    """Return the references of the plug-ins that an entry-point file registers."""
    parser = ConfigParser(delimiters="=", interpolation=None)
    parser.read(file, encoding="utf-8")
    return sorted(value for _, value in parser.items(GROUP)) if parser.has_section(GROUP) else []


def try_load(reference: str) -> tuple[Any, str]:
    """Return (object, "") of a reference, or (None, problem) if it fails to load."""
    try:
        return load_code(reference), ""
    except Exception as error:  # noqa: BLE001 - the package's code runs here, it may raise anything
        return None, f"{type(error).__name__}: {error}"


@lru_cache(maxsize=64)  # one that fails is not imported again for each key
def _load_model(reference: str) -> tuple[type[Any] | None, str]:
    """Return (model of the configuration keys that a plug-in adds, ""), or (None, problem)."""
    model, problem = try_load(reference)
    if problem or (isinstance(model, type) and hasattr(model, "model_fields")):
        return model, problem
    return None, f"{reference} is a {type(model).__name__}, not a subclass of PluginKeys"


def _load_plugin(place: str, distribution: str) -> LoadedPlugin:
    """Return the plug-in of a reference, or the reason why it cannot be loaded."""
    plugin, problem = try_load(place)
    if problem:
        return LoadedPlugin(place, distribution, None, problem)
    if not isinstance(plugin, Plugin):
        return LoadedPlugin(
            place, distribution, None, f"is a {type(plugin).__name__}, not an ajet.config.plugin.Plugin"
        )
    return LoadedPlugin(place, distribution, plugin)


def _start_plugin(plugin: Plugin) -> None:
    """Call the plug-in's start function. A failure is logged as a warning."""
    try:
        load_code(plugin.start)()
    except Exception as error:  # noqa: BLE001 - the package's code runs here, it may raise anything
        from loguru import logger

        logger.warning("the plug-in {} could not be started: {}: {}", plugin.name, type(error).__name__, error)


def _refuse_claimed_names(plugins: tuple[LoadedPlugin, ...]) -> tuple[LoadedPlugin, ...]:
    """Return the plug-ins. One that claims a name of an earlier plug-in is replaced by a problem."""
    owners: dict[tuple[str, str], str] = {}
    checked_plugins = []
    for plugin in plugins:
        if plugin.plugin is None:
            checked_plugins.append(plugin)
            continue
        names: list[tuple[str, str]] = [(kind, name) for kind in NAMED_KINDS for name in plugin.plugin.list_parts(kind)]
        names += [("command", name) for name in plugin.plugin.commands]
        names += [("flag", f"--with-{name}") for name in plugin.plugin.launch_flags]
        names += [("reference", name) for name in plugin.plugin.renamed]
        names += [("exported name", name) for name in plugin.plugin.exports]
        names += [("failure hint", name) for name in plugin.plugin.failure_hints]
        names += [("section of ajet doctor", name) for name in plugin.plugin.doctor_checks]
        stores = plugin.plugin.list_parts("store").values()
        names += [("address scheme", scheme) for store in stores for scheme in store.schemes]
        claimed_key = next((key for key in names if key in owners), None)
        if claimed_key is None:
            owners.update(dict.fromkeys(names, plugin.plugin.name))
            checked_plugins.append(plugin)
        else:
            problem = (
                f"it adds the {claimed_key[0]} {claimed_key[1]!r}, which the plug-in {owners[claimed_key]} adds already"
            )
            checked_plugins.append(LoadedPlugin(plugin.place, plugin.distribution, None, problem))
    return tuple(checked_plugins)


@lru_cache(maxsize=1)
def _index_shipped() -> PartIndex:
    """Return the parts that ship with ajet by kind and name, from a cache."""
    return _index_parts(_list_usable(shipped=True))


@lru_cache(maxsize=4)
def _index_all(path: tuple[str, ...], listed: str | None) -> PartIndex:
    """Return the parts of all plug-ins by kind and name, from a cache. The arguments are those of `_list_all`."""
    return _index_parts([loaded.plugin for loaded in _list_all(path, listed) if loaded.plugin is not None])


def _index_parts(plugins: list[Plugin]) -> PartIndex:
    """Return the parts of the plug-ins by kind and name."""
    return {
        kind: {name: part for plugin in plugins for name, part in plugin.list_parts(kind).items()}
        for kind in NAMED_KINDS
    }
