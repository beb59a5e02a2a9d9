"""Names of our modules, classes and functions that stand as text: in YAML, shell, entry points, manifests and pages.

Invariant: names are resolved in the sources and nothing is imported, so that code of an extra that is not installed is
checked as well. A name is also right if it is a key of the configuration, which is written with the same dots.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from ajet_testing.packages import PLUGINS, find_packages

OTHER_ROOTS = ("tutorial", "tests", "benchmarks", "scripts", PLUGINS)
SUFFIX = re.compile(r"\.(?:cfg|csv|html|jsonl?|log|md|parquet|pth|py|sh|toml|txt|ya?ml)$")
"""A name that ends so is a file's."""
FILE = re.compile(r"(?<![\w./-])[\w./-]+\.py->[A-Za-z_]\w*")
"""A reference to what a file defines, as configurations write it: workflow.py->Agent."""


@functools.cache
def pattern_of(root: Path) -> re.Pattern[str]:
    """Return the pattern of a dotted name that begins with a package or folder of this repository."""
    roots = "|".join((*find_packages(root), *OTHER_ROOTS, r"ajet_[a-z]\w*"))
    return re.compile(rf"(?<![\w./$\-{{@*])(?:{roots})(?:\.[A-Za-z_]\w*)+(?:(?:->|:)[A-Za-z_][\w.]*\w)?(?![\w/(*{{-])")


def find_names(text: str, root: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and each dotted name of a text, also of references by file."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in (*pattern_of(root).finditer(line), *FILE.finditer(line)):
            if not SUFFIX.search(match[0]):
                yield number, match[0]


def find_constants(source: str, root: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and each string of a Python file that is a dotted name and nothing else."""
    pattern = pattern_of(root)
    if not any(source[match.start() - 1] in "\"'" for match in pattern.finditer(source)):
        return  # most files: parsing is what costs
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.fullmatch(node.value):
            name: str = node.value
            if not SUFFIX.search(name):
                yield node.lineno, name


def is_own_key(name: str) -> bool:
    """True if a string of our code has two parts, as entry-point groups, labels and keys of a scope have."""
    return re.fullmatch(r"\w+\.\w+", name) is not None


def resolves(name: str, path: Path, root: Path, *, of_readers: bool) -> bool:
    """True if the sources define this name.

    Args:
        path: The file that has the name.
        of_readers: Whether a reference by file may mean a file that the reader of a page writes.
    """
    if ".py->" in name:
        file, _, attribute = name.partition("->")
        there = [place for folder in (path.parent, root) if (place := folder / file).is_file()]
        if there or not of_readers:
            return any(attribute in names_in(place) for place in there)
        return "/" not in file or not (root / file.partition("/")[0]).is_dir()
    parts = re.split(r"->|[.:]", name.removeprefix(f"{PLUGINS}."))
    for base in (root, root / PLUGINS, root / "tests" / "support"):
        for length in range(len(parts), 0, -1):
            place, rest = base.joinpath(*parts[:length]), parts[length:]
            for module in (place.with_suffix(".py"), place / "__init__.py"):
                if module.is_file():
                    return set(rest) <= names_in(module)
            if not rest and place.is_dir():
                return True
    return False


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """Return what a file defines at any depth, and its strings: names that it hands on lazily stand in a table."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)
    return frozenset(names)
