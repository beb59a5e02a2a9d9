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
    """A plug-in, or the reason why it could not be loaded."""

    place: str
    """Reference to the `Plugin` object of the package."""
    distribution: str
    plugin: Plugin | None
    problem: str = ""


@dataclass(frozen=True)
class AddedKeys:
    """Keys added to a section by a plug-in, with the loaded model."""

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
    """Return the parts of one kind that ship with ajet, by name."""
    return _index_shipped()[kind]


def find_all_parts(kind: NamedKind) -> dict[str, PluginPart]:
    """Return the parts of one kind of all installed plug-ins, by name.

    May search the installed distributions.
    """
    return _index_all(tuple(sys.path), os.environ.get(VARIABLE))[kind]


def find_part(kind: NamedKind, name: object) -> PluginPart | None:
    """Return a part by name, or None for an unknown name, a class or a reference."""
    if not isinstance(name, str) or "->" in name or ":" in name:
        return None
    return find_parts(kind).get(name) or find_all_parts(kind).get(name)


def list_first_names(kind: NamedKind) -> list[str]:
    """Return the names of the parts of one kind that ship with ajet, one per part."""
    return list({part.code: name for name, part in reversed(find_parts(kind).items())}.values())[::-1]


def find_first_name(kind: NamedKind, name: str) -> str:
    """Return the main name of a part for its name or alias, or the name itself if no part has it."""
    part = find_part(kind, name)
    return name if part is None else next(n for n, each in find_all_parts(kind).items() if each.code == part.code)


def find_shared_store(scheme: str) -> PluginPart | None:
    """Return the store for an address scheme, or None."""
    for find in (find_parts, find_all_parts):  # shipped ones first: all others take a search of the installation
        for part in find("store").values():
            if scheme in part.schemes:
                return part
    return None


def list_plugins() -> tuple[LoadedPlugin, ...]:
    """Return the plug-ins of all distributions, ajet's first."""
    return _list_all(tuple(sys.path), os.environ.get(VARIABLE))


@contextmanager
def hand_to_workers() -> Iterator[None]:
    """Within the block, processes started by this one load the same plug-ins without a search."""
    before = os.environ.get(VARIABLE)
    shipped = {each.place for each in _list_shipped()}
    os.environ[VARIABLE] = ",".join(
        plugin.place for plugin in list_plugins() if plugin.plugin and plugin.place not in shipped
    )
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def list_versions() -> dict[str, str]:
    """Return the version of each loaded plug-in by name, or "" if it is not installed as a package.

    Machines of a cluster compare these versions.
    """
    files = _find_entry_points(tuple(sys.path))
    installed = {entry_point: _read_version(file) for file in files for entry_point in _read_places(file)}
    installed |= {each.place: __version__ for each in _list_shipped()}
    return {
        plugin.plugin.name: installed.get(plugin.place, "") for plugin in list_plugins() if plugin.plugin is not None
    }


def find_renamed(reference: str) -> str:
    """Return the current reference for one in a YAML. It is unchanged unless a plug-in renamed it."""
    plugins = _list_usable()
    return next((plugin.renamed[reference] for plugin in plugins if reference in plugin.renamed), reference)


def load_export(name: str) -> Any:
    """Return the object of a name below `ajet` (`Plugin.exports`). Raises AttributeError for an unknown name."""
    for shipped in (True, False):
        for plugin in _list_usable(shipped=shipped):
            if name in plugin.exports:
                return load_code(plugin.exports[name])
    package, _, last = f"ajet.{name}".rpartition(".")
    raise AttributeError(f"module {package!r} has no attribute {last!r}")


def list_exports(package: str = "") -> list[str]:
    """Return the names exported by shipped plug-ins in `ajet` or in a package below."""
    exports = [name.rpartition(".") for plugin in _list_usable(shipped=True) for name in plugin.exports]
    return [name for module, _, name in exports if module == package]


def find_failure_hint(kind: str, workflow: type[object] | None = None) -> str:
    """Return the advice on a failed attempt (`Plugin.failure_hints`), or ""."""
    hints = {key: hint for plugin in _list_usable() for key, hint in plugin.failure_hints.items()}
    classes = workflow.__mro__ if workflow is not None else ()
    return next((hints[key] for key in (*(f"{kind} of {each.__name__}" for each in classes), kind) if key in hints), "")


def list_references(table: ReferenceTable) -> list[str]:
    """Return the references in a field of all plug-ins."""
    return [reference for plugin in _list_usable() for reference in getattr(plugin, table)]


def load_references(table: ReferenceTable, kind_name: str) -> Iterator[Any]:
    """Yield the objects of all references in a field. Log a warning for each reference that fails to load.

    Args:
        kind_name: Name of the part's kind in the warning.
    """
    for reference in list_references(table):
        code, problem = try_load(reference)
        if problem:
            from loguru import logger

            logger.warning("ajet ignores the {} {}, because it cannot be loaded: {}", kind_name, reference, problem)
        else:
            yield code


def start_plugins() -> None:
    """Call `Plugin.start` of each plug-in once per process, before the search for user code.

    A failure is only a warning, because the run may not need the plug-in.
    """
    with _start_lock:
        for plugin in list_plugins():
            if plugin.plugin is not None and plugin.plugin.start and plugin.place not in _started:
                _started.add(plugin.place)
                _start_plugin(plugin.plugin)


def find_doctor_checks() -> dict[str, str]:
    """Return the references of `Plugin.doctor_checks` of all plug-ins, by section."""
    return {title: check for plugin in _list_usable() for title, check in plugin.doctor_checks.items()}


def list_added_keys(*, shipped: bool = False) -> tuple[AddedKeys, ...]:
    """Return the keys added to the configuration by plug-ins. `shipped`: only plug-ins shipped with ajet."""
    plugins = _list_usable(shipped=shipped)
    loaded = [(plugin.name, keys.path, _load_model(keys.model)) for plugin in plugins for keys in plugin.config_keys]
    return tuple(AddedKeys(name, path, model) for name, path, (model, _) in loaded if model is not None)


def describe_broken_keys(plugin: Plugin) -> str:
    """Return the added keys that fail to load, with reasons, or ""."""
    problems = [(keys.path, _load_model(keys.model)[1]) for keys in plugin.config_keys]
    return "; ".join(
        f"keys of {'.'.join(filter(None, ['ajet', path]))}: {problem}" for path, problem in problems if problem
    )


def list_packages() -> list[str]:
    """Return the importable names of the packages that ship with ajet, the kernel first."""
    return [*dict.fromkeys(plugin.place.partition(".")[0] for plugin in _list_shipped())]


@lru_cache(maxsize=1)
def list_package_roots() -> tuple[Path, ...]:
    """Return the folders of the packages shipped with ajet. Code below these folders is not the user's."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in list_packages()]
    return tuple(Path(file).resolve().parent for file in files if file is not None)


def find_commands() -> dict[str, Command]:
    """Return the commands of the shipped plug-ins, by name."""
    return {name: command for plugin in _list_usable(shipped=True) for name, command in plugin.commands.items()}


def find_all_commands() -> dict[str, Command]:
    """Return the commands of all plug-ins, by name. May search the installed distributions."""
    return {name: command for plugin in _list_usable() for name, command in plugin.commands.items()}


def find_launch_flags(*, shipped: bool = False) -> dict[str, LaunchFlag]:
    """Return the flags of a launch by name without `--with-`. `shipped`: only flags that ship with ajet."""
    return {name: flag for plugin in _list_usable(shipped=shipped) for name, flag in plugin.launch_flags.items()}


def describe_broken() -> str:
    """Return a sentence on each plug-in (or added keys) that failed to load, or ""."""
    problems = [
        (plugin, plugin.problem or (describe_broken_keys(plugin.plugin) if plugin.plugin else ""))
        for plugin in list_plugins()
    ]
    broken = [f"{each.place} ({each.distribution}): {problem}" for each, problem in problems if problem]
    return f"These plug-ins could not be loaded: {'; '.join(broken)}." if broken else ""


@lru_cache(maxsize=1)
def _list_shipped() -> tuple[LoadedPlugin, ...]:
    """Return the kernel's descriptor and those of the plug-ins that ajet ships, in a checkout or in the wheel."""
    places = _find_in_checkout() if _is_checkout() else _find_in_wheel()
    others = sorted(set(places) - {KERNEL})
    return _refuse_claimed_names(tuple(_load_plugin(entry_point, DISTRIBUTION) for entry_point in (KERNEL, *others)))


@lru_cache(maxsize=4)
def _list_all(path: tuple[str, ...], listed: str | None) -> tuple[LoadedPlugin, ...]:
    foreign = _load_foreign(path) if listed is None else _load_listed(listed)
    return _refuse_claimed_names((*_list_shipped(), *foreign))


def _list_usable(*, shipped: bool = False) -> list[Plugin]:
    """Return the loaded plug-ins. `shipped`: only plug-ins shipped with ajet."""
    loaded = _list_shipped() if shipped else list_plugins()
    return [each.plugin for each in loaded if each.plugin is not None]


def _is_checkout() -> bool:
    return (INSTALL_ROOT / "plugins").is_dir() and (INSTALL_ROOT / "pyproject.toml").is_file()


def _find_in_checkout() -> Iterator[str]:
    """Yield the plug-ins below `plugins/`, usable without installation."""
    for file in (INSTALL_ROOT / "plugins").glob("*/plugin.py"):
        yield f"{file.parent.name}.plugin:PLUGIN"


def _find_in_wheel() -> Iterator[str]:
    for file in INSTALL_ROOT.glob(f"{DISTRIBUTION}-*.dist-info/entry_points.txt"):
        yield from _read_places(file)


def _load_listed(listed: str) -> Iterator[LoadedPlugin]:
    yield from (_load_plugin(entry_point, "the driver's list") for entry_point in listed.split(",") if entry_point)


def _load_foreign(path: tuple[str, ...]) -> Iterator[LoadedPlugin]:
    for file in _find_entry_points(path):
        yield from (_load_plugin(entry_point, file.parent.name.partition("-")[0]) for entry_point in _read_places(file))


def _find_entry_points(path: tuple[str, ...]) -> Iterator[Path]:
    """Yield the entry-point files of other distributions with a plug-in.

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
    """Return the references of a distribution's plug-ins."""
    parser = ConfigParser(delimiters="=", interpolation=None)
    parser.read(file, encoding="utf-8")
    return sorted(value for _, value in parser.items(GROUP)) if parser.has_section(GROUP) else []


def try_load(reference: str) -> tuple[Any, str]:
    """Return (object, ""), or (None, problem) for a reference that fails to load."""
    try:
        return load_code(reference), ""
    except Exception as problem:  # noqa: BLE001 - the package's code runs here, it may raise anything
        return None, f"{type(problem).__name__}: {problem}"


@lru_cache(maxsize=64)  # one that fails is not imported again for each key
def _load_model(reference: str) -> tuple[type[Any] | None, str]:
    """Return (model of added keys, ""), or (None, problem)."""
    model, problem = try_load(reference)
    if problem or (isinstance(model, type) and hasattr(model, "model_fields")):
        return model, problem
    return None, f"{reference} is a {type(model).__name__}, not a subclass of PluginKeys"


def _load_plugin(place: str, distribution: str) -> LoadedPlugin:
    plugin, problem = try_load(place)
    if problem:
        return LoadedPlugin(place, distribution, None, problem)
    if not isinstance(plugin, Plugin):
        return LoadedPlugin(
            place, distribution, None, f"is a {type(plugin).__name__}, not an ajet.config.plugin.Plugin"
        )
    return LoadedPlugin(place, distribution, plugin)


def _start_plugin(plugin: Plugin) -> None:
    try:
        load_code(plugin.start)()
    except Exception as problem:  # noqa: BLE001 - the package's code runs here, it may raise anything
        from loguru import logger

        logger.warning("the plug-in {} could not be started: {}: {}", plugin.name, type(problem).__name__, problem)


def _refuse_claimed_names(plugins: tuple[LoadedPlugin, ...]) -> tuple[LoadedPlugin, ...]:
    """Return the plug-ins, with each claim of a taken name replaced by a problem."""
    owners: dict[tuple[str, str], str] = {}
    result = []
    for plugin in plugins:
        if plugin.plugin is None:
            result.append(plugin)
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
        claimed = next((key for key in names if key in owners), None)
        if claimed is None:
            owners.update(dict.fromkeys(names, plugin.plugin.name))
            result.append(plugin)
        else:
            problem = f"it adds the {claimed[0]} {claimed[1]!r}, which the plug-in {owners[claimed]} adds already"
            result.append(LoadedPlugin(plugin.place, plugin.distribution, None, problem))
    return tuple(result)


@lru_cache(maxsize=1)
def _index_shipped() -> PartIndex:
    return _index_parts(_list_usable(shipped=True))


@lru_cache(maxsize=4)
def _index_all(path: tuple[str, ...], listed: str | None) -> PartIndex:
    return _index_parts([each.plugin for each in _list_all(path, listed) if each.plugin is not None])


def _index_parts(plugins: list[Plugin]) -> PartIndex:
    return {
        kind: {name: part for plugin in plugins for name, part in plugin.list_parts(kind).items()}
        for kind in NAMED_KINDS
    }
