"""Gate tests name the product by its public names alone, so that a change inside it changes none of them.

The list is `tests/support/gates.txt`: a file a line; `seam FILE` is a helper that may name internals for the gates;
`#` begins a comment.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = ("ajet.schema.", "ajet.record.trackers.Tracker", "ajet.config.plugin")
"""Beginnings of public names, besides what the public packages export; the last two are documented in extending.md."""
PACKAGES = ("ajet", "ajet.client", "ajet.record", "ajet.schema", "ajet.tune")
IMPORTS = re.compile(r"(?:^|[;\n])\s*(?:from|import) (ajet(?:\.\w+)*)")
"""Of a program in a string."""
TAKES_NAMES = ("setattr", "delattr", "patch", "import_module", "__import__")
"""Functions whose first argument may be a dotted name: elsewhere such a string is a key of the configuration."""


def read_list() -> tuple[list[str], set[str]]:
    """Return the gates' files and the modules of their seams."""
    gates, seams = list[str](), set[str]()
    for line in (ROOT / "tests" / "support" / "gates.txt").read_text().splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["seam"]:
            seams.add(words[1].removesuffix(".py").replace("/", "."))
        elif words:
            gates.append(words[0])
    return gates, seams


GATES, SEAMS = read_list()
GATE_MODULES = {gate.removesuffix(".py").replace("/", ".") for gate in GATES}


def find_problems(source: str) -> Iterator[str]:
    """Yield what a gate must not name, with its line."""
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            yield from (f"{line}: {each.name}" for each in node.names if not is_allowed(each.name, None))
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = node.module
            yield from (f"{line}: {module}.{each.name}" for each in node.names if not is_allowed(module, each.name))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield f"{line}: .{node.attr}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ajet":
            if not is_allowed("ajet", node.attr):
                yield f"{line}: ajet.{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (f"{line}: {name}" for name in IMPORTS.findall(node.value) if not is_allowed(name, None))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = str(node.args[0].value)
            if called in TAKES_NAMES and name.startswith("ajet.") and not is_allowed(*name.rpartition(".")[::2]):
                yield f"{line}: {name}"


def is_allowed(module: str, name: str | None) -> bool:
    """True for a name that is public, of a third party, of a seam or of another gate."""
    whole = module if name is None else f"{module}.{name}"
    if module.partition(".")[0] == "ajet":
        exported = module in PACKAGES and (name is None or not (ROOT / whole.replace(".", "/")).is_dir())
        return whole in PACKAGES or whole.startswith(PUBLIC) or (exported and not is_module(whole))
    if module.partition(".")[0] == "tests":
        return bool({module, whole} & (SEAMS | GATE_MODULES))
    return True


def is_module(name: str) -> bool:
    """True if this is a module of ours, and no name that a package exports."""
    return (ROOT / f"{name.replace('.', '/')}.py").exists() and name not in PACKAGES


@pytest.mark.parametrize("gate", GATES)
def test_gate_names_public_things_alone(gate: str) -> None:
    assert list(find_problems((ROOT / gate).read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import ajet.gateway.server",
        "from ajet.gateway import Gateway",
        "from ajet import gateway",
        "import ajet; ajet.gateway.Gateway",
        "from ajet.record import episodes",
        "from ajet.record.episodes import EpisodeFiles",
        "from ajet.client.request_sender import Asking",
        "from tests.support.rollout_workflows import Asks",
        "def test(session): session._ledger.idle",
        "def test(monkeypatch): monkeypatch.setattr('ajet.rollout.breaker.FIRST_PAUSE', 1)",
        "CODE = 'import sys; from ajet.engine import openmp'",
        "import importlib; importlib.import_module('ajet.gateway')",
    ],
)
def test_internal_name_is_found(source: str) -> None:
    assert list(find_problems(source))


def test_public_names_and_seams_are_let_be() -> None:
    source = """
import ajet, httpx
from ajet import AjetTuner, Workflow
from ajet.client import Client
from ajet.record import EpisodeFiles
from ajet.record.trackers import Tracker
from ajet.schema.call import full_ids
from tests.support.gateways import start_gateway
CODE = "import ajet.client"
KEY = "ajet.rollout.isolation"
class A:
    def b(self): return self._b
"""
    assert list(find_problems(source)) == []
