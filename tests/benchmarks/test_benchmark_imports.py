"""What a benchmark, a script, or a peer that a benchmark is held against takes from another file of ours is there:
they are run by hand, and rarely."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_testing.packages import PLUGINS, find_packages

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "scripts", f"{PLUGINS}/*/benchmarks")
    for each in ROOT.glob(folder)
    for path in each.rglob("*.py")
)


def defined(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(each.asname or each.name).partition(".")[0] for each in node.names}
    return names


def find_faults(script: Path, root: Path) -> Iterator[str]:
    """Yield each import of a module or name of ours that is not there."""
    ours = {*find_packages(root), "tests"}
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from find_module_faults(alias.name, set(), script, root, ours)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from find_module_faults(node.module, {alias.name for alias in node.names}, script, root, ours)


def find_module_faults(module: str, names: set[str], script: Path, root: Path, ours: set[str]) -> Iterator[str]:
    """Yield what one import statement takes that is not there."""
    folders = (script.parent, root / "benchmarks", root, root / PLUGINS)
    places = [folder / module.replace(".", "/") for folder in folders]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    if not files and module.partition(".")[0] in ours and not any(place.is_dir() for place in places):
        yield f"there is no {module}"
    for file in files:
        modules = {path.stem for path in file.parent.glob("*.py")}
        modules |= {path.parent.name for path in file.parent.glob("*/__init__.py")}
        if lacking := names - defined(file) - modules:
            yield f"{file.relative_to(root)} has no {', '.join(sorted(lacking))}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_it_imports_of_ours_is_there(script: Path) -> None:
    assert list(find_faults(script, ROOT)) == []


def test_a_wrong_import_is_found_in_each_package(tmp_path: Path) -> None:
    for folder in ("ajet", "plugins/ajet_toy", "train", "env"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text("")
        (tmp_path / folder / "code.py").write_text("x = 1\n")
    script = tmp_path / "benchmarks" / "bench.py"
    script.parent.mkdir()
    packages = ("ajet", "ajet_toy", "train", "env")
    script.write_text("".join(f"from {name}.code import x\nimport {name}.code\n" for name in packages))
    assert list(find_faults(script, tmp_path)) == []
    script.write_text("".join(f"from {name}.code import y\nimport {name}.gone\n" for name in packages))
    assert len(list(find_faults(script, tmp_path))) == 2 * len(packages)
