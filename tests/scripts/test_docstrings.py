"""A docstring can be read alone: where an editor shows it, nobody sees the line above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_testing.packages import find_packages, list_sources

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for package in find_packages(ROOT).values() for path in list_sources(package)]
RIDDLE = re.compile(r"(Of|The same|That|Those|As|It|They|From|With|By|Beside) (?!many )")
"""How one begins that leaves its subject to the reader."""
NOT_OURS = ("plugins/ajet_gaia/servers", "ajet/cli/templates", "ajet/config/schema")
"""What a model reads of a tool; what a user changes; sentences of a page, whose heading is their subject."""


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and (
            said := ast.get_docstring(node)
        ):
            yield node.lineno, said


@pytest.mark.slow
def test_a_docstring_names_its_subject() -> None:
    found = [(file, line, said) for file in FILES for line, said in docstrings(file)]
    riddles = [
        f"{file.relative_to(ROOT)}:{line}: {said.splitlines()[0]}"
        for file, line, said in found
        if not file.relative_to(ROOT).as_posix().startswith(NOT_OURS) and RIDDLE.match(said)
    ]
    assert not riddles, "\n".join(riddles)
    assert found
