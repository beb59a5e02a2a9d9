"""Find poor names and misplaced tests: `python -m scripts.naming [--accept]`, a part of `make check`.

scripts/naming_known.txt lists the known places, one a line, each with its rule. A place that is not listed fails the
check. A listed place that is mended fails too, until `--accept` removes it from the list. `--accept` never adds one,
so the count of each rule can only fall.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KNOWN = Path("scripts/naming_known.txt")
BANNED_WORDS = frozenset({
    "told", "tell", "asked", "asks", "said", "says", "saying", "heard", "hears", "spoken", "seldom", "beside",
    "elsewhere", "aside", "worth", "owes", "kept", "alike", "whole", "apart", "again", "likewise", "whence",
    "lacking", "torn", "walled",
})  # fmt: skip
"""Words of no technical vocabulary, each with a plain one in its stead (log, request, store, remote, complete)."""
FOLDERS_OF_NO_MODULE = frozenset(
    {
        "benchmarks",
        "contract",
        "docs",
        "faults",
        "installs",
        "learns",
        "mistakes",
        "scripts",
        "support",
        "toys",
        "tutorials",
    }
)
"""Their tests are of pages, clients, whole commands: no module's."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accept", action="store_true", help="take mended places off the list")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    known_file = options.root / KNOWN
    known = set(known_file.read_text().splitlines()) if known_file.exists() else set()
    places = set(find_places(options.root))
    new, mended = sorted(places - known), sorted(known - places)
    if options.accept and mended:
        known_file.write_text("".join(f"{place}\n" for place in sorted(known & places)))
        print(f"{len(mended)} mended places are off the list")
        mended = []
    for place in new:
        print(f"new: {place}")
    if mended:
        print(f"{len(mended)} listed places are mended; run: python -m scripts.naming --accept")
        print("\n".join(f"  {place}" for place in mended[:20]))
    return int(bool(new or mended))


def find_places(root: Path) -> Iterator[str]:
    """Yield every forbidden name as "RULE PATH NAME"."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "ajet/*.py", "plugins/*.py", "tests/*.py"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [file for file in listed.stdout.split() if (root / file).exists()]
    sources = [file for file in files if not is_test_file(file)]
    classes: dict[str, list[str]] = defaultdict(list)
    for file in sources:
        tree = ast.parse((root / file).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(file)
            elif isinstance(node, FUNCTIONS) and re.fullmatch(r"_[a-z0-9]+", node.name):
                yield f"one-word-private {file} {node.name}"
            name = find_name(node)
            if name is not None and BANNED_WORDS.intersection(split_words(name)):
                yield f"banned-word {file} {name}"
    for name, owners in classes.items():
        if len(owners) > 1:
            yield from (f"repeated-class {file} {name}" for file in owners)
    modules = set(sources)
    for file in files:
        if is_test_file(file):
            if not has_module(file, modules):
                yield f"test-without-module {file} -"
            yield from find_private_uses(root, file)


def is_test_file(file: str) -> bool:
    return file.startswith("tests/") or "/tests/" in file


def has_module(file: str, modules: set[str]) -> bool:
    """True if a test lies with its module: tests/store/test_lease_ends.py tests lease.py of ajet/store.

    The first word of a plug-in's test may be the plug-in: plugins/ajet_verl/tests/test_verl_hooks.py.
    """
    folder, _, name = file.rpartition("/")
    if not name.startswith("test_") or FOLDERS_OF_NO_MODULE.intersection(folder.split("/")):
        return True
    parts = folder.split("/")
    package = f"ajet/{parts[1]}/" if parts[0] == "tests" and len(parts) > 1 else f"{'/'.join(parts[:2])}/"
    words = name.removeprefix("test_").removesuffix(".py").split("_")
    names = {"_".join(words[start:end]) for start in (0, 1) for end in range(start + 1, len(words) + 1)}
    return any(
        module.startswith(package) and names.intersection(module.removeprefix(package).removesuffix(".py").split("/"))
        for module in modules
    )


def find_private_uses(root: Path, file: str) -> Iterator[str]:
    """Yield private attributes that a test reads of another object, or patches by their name."""
    for node in ast.walk(ast.parse((root / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
                yield f"private-use {file} {node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            for argument in node.args[:2]:
                if isinstance(argument, ast.Constant) and re.match(r"(.*\.)?_[a-z]", str(argument.value)):
                    yield f"private-use {file} {argument.value}"


def find_name(node: ast.AST) -> str | None:
    """Return the identifier of a definition, parameter, variable or attribute."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
            return name
    return None


def split_words(identifier: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", identifier).lower())


if __name__ == "__main__":
    sys.exit(main())
