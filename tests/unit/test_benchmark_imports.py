"""What a benchmark, or a peer that it is held against, takes from another file of ours is there: they are run by hand,
and rarely."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))


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


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_it_imports_of_ours_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        place = node.module.replace(".", "/")
        files = [
            script.parent / f"{place}.py",
            ROOT / "benchmarks" / f"{place}.py",
            ROOT / f"{place}.py",
            ROOT / place / "__init__.py",
        ]
        for file in (each for each in files if each.is_file()):
            lacking = {each.name for each in node.names} - defined(file)
            lacking -= {each for each in lacking if (file.parent / each).with_suffix(".py").is_file()}
            lacking -= {each for each in lacking if (file.parent / each / "__init__.py").is_file()}
            assert not lacking, f"{file.relative_to(ROOT)} has no {', '.join(sorted(lacking))}"
