"""What may be imported where (DESIGN, "The rooms" and decision 12). import-linter's contracts: `make check`."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

from ajet_testing.packages import AWORLD_NAMES, PLUGINS, find_packages, find_plugins, list_sources

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ajet"
HEAVY = ("torch", "transformers", "ray", "datasets", "hydra")
"""What `import ajet.ROOM` must not load."""
LAZY = ("transformers", "datasets", "hydra", "peft", "accelerate", "gguf", "matplotlib", "tensorboard")
"""Imported inside functions only: they are slow, or optional."""
NAMED = ("ray", "verl", "vllm", "trinity", "pymongo", "mcp", "aworld", "agentscope")
"""Imported only in a file or folder that bears the name."""
BUILT_ON_IT: dict[str, tuple[str, ...]] = {
    "pymongo": ("mongo",), "ray": ("verl", "trinity"), "vllm": ("verl", "trinity"), "verl": ("trinity",),
    "aworld": AWORLD_NAMES,
}  # fmt: skip
"""Folders of what stands on it."""


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Of every file of each package: kernel, plug-ins and AWorld's names."""
    packages = find_packages(ROOT).values()
    return {path: ast.parse(path.read_text()) for package in packages for path in list_sources(package)}


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module.split(".")[0]


def parts_of(path: Path) -> tuple[str, ...]:
    """Return the names from the package down to the file."""
    where = path.relative_to(ROOT)
    return where.relative_to(PLUGINS).parts if where.parts[0] == PLUGINS else where.parts


def on_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, without those for type checkers."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            continue
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for name in ("body", "orelse", "finalbody"):
                yield from on_import(getattr(statement, name, []))


def test_every_room_is_in_the_layers() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    rooms = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
    assert len(rooms) > 5
    assert [room for room in rooms if f'"ajet.{room}"' not in text and f'"(ajet.{room})"' not in text] == []


@pytest.mark.slow
def test_every_package_says_what_it_is_for(trees: dict[Path, ast.Module]) -> None:
    silent = [str(path.relative_to(ROOT)) for path, tree in trees.items() if not ast.get_docstring(tree)]
    assert silent == []


def test_slow_and_optional_packages_are_imported_inside_functions(trees: dict[Path, ast.Module]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{statement.lineno} {name}"
        for path, tree in trees.items()
        for statement in on_import(tree.body)
        for name in imported(statement)
        if name in LAZY
    ]
    assert found == []


@pytest.mark.slow
def test_frameworks_are_imported_only_where_the_name_says_so(trees: dict[Path, ast.Module]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {name}"
        for path, tree in trees.items()
        for statement in on_import(tree.body)
        for node in ast.walk(statement)
        for name in imported(node)
        if name in NAMED
        and not {name, *BUILT_ON_IT.get(name, ())} & {part.removeprefix("ajet_") for part in parts_of(path)}
        and name not in path.stem
    ]
    assert found == []


@pytest.mark.slow
def test_no_room_takes_a_name_from_the_root(trees: dict[Path, ast.Module]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {alias.name}"
        for path, tree in trees.items()
        if "templates" not in path.parts  # what users get to write, with the imports that users write
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "ajet" and node.level == 0
        for alias in node.names
        if not (PACKAGE / alias.name).is_dir() and alias.name != "__version__"
    ]
    assert found == []


@pytest.mark.slow
def test_no_two_files_import_each_other(trees: dict[Path, ast.Module]) -> None:
    """Over any number of files in between, and whenever: in a function and for type checkers, too. A name that a
    package only hands on is taken from the file that defines it."""
    named = {dotted(path): path for path in trees}
    handed_on = {name: dict(taken(name, trees[path], named)) for name, path in named.items() if is_face(path)}

    def home(module: str, name: str) -> str:
        while name in handed_on.get(module, {}):
            module, name = handed_on[module][name]
        return module

    arrows = {
        name: {home(*target) for _, target in taken(name, trees[path], named)} - {name, "ajet"}
        for name, path in named.items()
    }
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as circle:
        pytest.fail(" <- ".join(circle.args[1]))
    assert "ajet.schema.episode" in arrows["ajet.train.session"], "a name of a file"
    assert "ajet.config.schema.experiment" in arrows["ajet.train.sources.rollout"], "a name that a package hands on"


def dotted(path: Path) -> str:
    return ".".join(parts_of(path)).removesuffix(".py").removesuffix(".__init__")


def is_face(path: Path) -> bool:
    return path.name == "__init__.py" and path.parent != PACKAGE


def taken(importer: str, tree: ast.Module, named: dict[str, Path]) -> Iterator[tuple[str, tuple[str, str]]]:
    """What a file imports of ours: the name that it has there, and (the module, its name in it; "": the module)."""
    package = importer if named[importer].name == "__init__.py" else importer.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, (alias.name, "")) for alias in node.names if alias.name in named)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                if whole in named or module in named:
                    yield alias.asname or alias.name, (whole, "") if whole in named else (module, alias.name)


@pytest.mark.slow
def test_importing_a_room_loads_nothing_heavy() -> None:
    rooms = ["ajet", *sorted(f"ajet.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")), "train", "env"]
    rooms += [f"{name}.plugin" for name, folder in find_plugins(ROOT).items() if (folder / "plugin.py").is_file()]
    script = f"""
import importlib, sys
sys.path.append({str(ROOT / PLUGINS)!r})
seen = set()
for room in {rooms!r}:
    importlib.import_module(room)
    new = sorted(name for name in {HEAVY!r} if name in sys.modules and name not in seen)
    seen.update(new)
    if new:
        print(room, "loads", *new)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


WITHOUT_AJET = ("ajet/client", "ajet/schema/frames.py", "plugins/ajet_sandbox/inside", "plugins/ajet_gaia/servers")
"""Where there is no ajet to import, as it runs."""


@pytest.mark.slow
def test_every_error_of_ours_has_one_root(trees: dict[Path, ast.Module]) -> None:
    strangers = []
    for path, tree in trees.items():
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and (names := {ast.unparse(base) for base in node.bases}):
                ours = {name for name in names if not issubclass(getattr(builtins, name, object), Exception)}
                if names - ours and not ours and not where.startswith(WITHOUT_AJET):
                    strangers.append(f"{where}: {node.name}")
    assert strangers == ["ajet/schema/errors.py: AjetError"]
