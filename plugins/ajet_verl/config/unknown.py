"""Finds keys in verl's sections unknown to verl.

Invariant: a key is accepted by its full path only. It is in verl's composed config, or a field of the section's
dataclass, or, in a section without a dataclass, verl's source reads it from a section of the same name. Sections passed
to other libraries (engine_kwargs, override_config, ray_init) accept any key.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.config.compose import ABSENT
from ajet.config.validate import join_errors
from ajet.schema.errors import ConfigError

if TYPE_CHECKING:
    from ajet.config.experiment import Experiment

_HANDED_ON = re.compile(r"override_.*|.*kwargs|ray_init|runtime_env|custom|env_vars")
_DATA = "data"
"""The section passed to datasets as their complete `config`."""


_UNUSED = ("ajet", "critic", "distillation", "reward", "reward_model")
"""Roots of ajet, or roots not read by verl's trainer: their keys are never suggested."""


@dataclass(frozen=True, slots=True)
class _UnlistedKey:
    """A key in the user's sections that verl's composed config does not list."""

    path: tuple[str, ...]
    siblings: tuple[str, ...]
    """The listed keys of the same section."""
    target: str
    """Dotted name of the dataclass of the key's section, or ""."""


@dataclass(slots=True)
class VerlSource:
    """Searches verl's source files for config keys, without importing them."""

    package: Path
    """Folder of the package `verl`."""
    _bases_and_fields: dict[str, tuple[list[str], set[str]]] = field(default_factory=dict)
    """Maps a class name to its bases and own fields."""
    _scanned_files: set[Path] = field(default_factory=set)
    _texts: list[str] = field(default_factory=list)
    """Texts of all files of the package, read at the first search."""

    def list_fields(self, target: str) -> set[str]:
        """Return the field names of a dataclass of verl and of its bases, or an empty set if it is not found.

        Args:
            target: dotted name of the dataclass.
        """
        module, _, name = target.rpartition(".")
        self._scan_package(self.package / "base_config.py")
        self._scan_package(self.package.joinpath(*module.split(".")[1:]))
        return self._collect_fields(name)

    def is_read(self, path: tuple[str, ...]) -> bool:
        """Return True if verl's source reads a key, judged by the names of the key and its section only.

        Args:
            path: path of the key; the last two names are the section and the key.
        """
        *_, section, name = path
        get_pattern = rf"(?:\.get\(\s*|\[)[\"']{re.escape(name)}\b"
        from_config = rf"|\bconfig{get_pattern}" if section == _DATA else ""
        pattern = re.compile(
            rf"\b(?:\w+_)?{re.escape(section)}(?:_config)?(?:\.{re.escape(name)}\b|{get_pattern}){from_config}"
        )
        if not self._texts:
            self._texts = [file.read_text(encoding="utf-8") for file in self.package.rglob("*.py")]
        return any(map(pattern.search, self._texts))

    def _collect_fields(self, name: str) -> set[str]:
        """Return the fields of a scanned class and of its base classes, or an empty set for an unknown class."""
        bases, fields = self._bases_and_fields.get(name, ([], set()))
        return fields.union(*(self._collect_fields(base) for base in bases if base != name))

    def _scan_package(self, path: Path) -> None:
        """Read the classes of a module, or of all modules of a package."""
        module = path.with_suffix(".py")
        files = [module] if module.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            if file in self._scanned_files:
                continue
            self._scanned_files.add(file)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    fields = {
                        statement.target.id
                        for statement in node.body
                        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
                    }
                    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                    self._bases_and_fields[node.name] = bases, fields


def refuse_unknown(
    experiment: Experiment, users: Mapping[str, Any], known: Mapping[str, Any], source: VerlSource
) -> None:
    """Raise ConfigError with all keys in the user's sections that verl does not know.

    Args:
        users: the user's sections for verl, as one tree.
        known: verl's composed config with ajet's layers, without the user's sections.
        source: searches verl's source files.
    """
    refused = []
    for key in _list_unlisted(users, known, ()):
        # `target` is verl's dataclass of the section. Without one, any use of the key in verl's source counts.
        fields = source.list_fields(key.target) if key.target else set()
        if key.path[-1] in fields or (not fields and source.is_read(key.path)):
            continue
        refused.append(_build_error(experiment, key.path, (*key.siblings, *sorted(fields)), known))
    if refused:
        raise join_errors(refused)


def _list_unlisted(
    node: Mapping[str, Any], listed: Mapping[str, Any], section_path: tuple[str, ...]
) -> Iterator[_UnlistedKey]:
    """Yield each key of the user's sections that verl's composed config lacks.

    Args:
        node: a section of the user.
        listed: the same section in verl's composed config.
        section_path: path of the section.
    """
    for name, value in node.items():
        path = (*section_path, str(name))
        if name not in listed:
            siblings = tuple(str(key) for key in listed if not str(key).startswith(("_", "ajet_")))
            yield _UnlistedKey(path, siblings, str(listed.get("_target_") or ""))
        elif isinstance(value, Mapping) and _is_closed(str(name), listed[name]):
            yield from _list_unlisted(value, listed[name], path)


def _is_closed(name: str, listed: Any) -> bool:
    """True if a section accepts only listed keys: it lists some, and is not passed on to another library."""
    return isinstance(listed, Mapping) and bool(listed) and not _HANDED_ON.fullmatch(name)


def _build_error(
    experiment: Experiment, path: tuple[str, ...], siblings: tuple[str, ...], known: Mapping[str, Any]
) -> ConfigError:
    """Build the error for a key that verl does not know, with the place of the key and the most similar known key.

    Args:
        path: path of the key.
        siblings: known keys of its section.
        known: verl's composed config.
    """
    layers = experiment.layers
    written_path = next(
        (
            candidate
            for candidate in (path, ("verl", *path))
            if any(layer.get_value(candidate) is not ABSENT for layer in layers.stack)
        ),
        path,
    )
    nearest = find_nearest(path, siblings, known)
    prefix = written_path[: len(written_path) - len(path)]
    return ConfigError(
        f"verl has no key {'.'.join(path)}.",
        where=layers.locate(written_path),
        do=f"did you mean {'.'.join((*prefix, *nearest))}?" if nearest else "see docs/reference/verl_keys.md",
    )


def find_nearest(path: tuple[str, ...], siblings: tuple[str, ...], known: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the path of the known key that is most similar to an unknown one, or ().

    Candidates are keys of the same section with a similar name, then keys of the same name in other sections.

    Args:
        path: path of the unknown key.
        siblings: known keys of its section.
        known: verl's composed config.
    """
    if similar := get_close_matches(path[-1], siblings, 1):
        return (*path[:-1], similar[0])
    sections = {name: node for name, node in known.items() if name not in _UNUSED}
    same_name_paths = [candidate for candidate in _list_paths(sections, ()) if candidate[-1] == path[-1]]
    dotted = ".".join(path)
    return max(
        same_name_paths, key=lambda candidate: SequenceMatcher(None, ".".join(candidate), dotted).ratio(), default=()
    )


def _list_paths(node: Mapping[str, Any], section_path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all keys of a nested mapping, sections included."""
    for name, value in node.items():
        path = (*section_path, str(name))
        yield path
        if isinstance(value, Mapping):
            yield from _list_paths(value, path)
