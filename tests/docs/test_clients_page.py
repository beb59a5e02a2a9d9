"""The table in docs/clients.md has a cell for each tested (client, dialect, way), and no other."""

import importlib
import re
from pathlib import Path

from tests.client_fixtures import PATHS, Cell
from tests.docs.snippets import ROOT

PAGE = ROOT / "docs" / "clients.md"


def played() -> set[Cell]:
    """The cells that the client tests play."""
    cells: set[Cell] = set()
    for path in sorted(Path(ROOT, "tests", "contract").glob("test_clients_*.py")):
        module = importlib.import_module(f"tests.contract.{path.stem}")
        (mark,) = [mark for mark in module.test_its_episode_is_proven.pytestmark if mark.name == "parametrize"]
        assert list(mark.args[1]) == list(module.PLAYS), f"{path.name} plays what it lists"
        assert cells.isdisjoint(module.PLAYS), f"{path.name} repeats a cell"
        cells |= set(module.PLAYS)
    return cells


def documented() -> set[Cell]:
    """The cells that the page's table names."""
    header, _, *rows = re.findall(r"^\|(.+)\|$", PAGE.read_text(), re.M)[: len(_rows())]
    dialects = [name.strip() for name in header.split("|")][1:]
    cells: set[Cell] = set()
    for row in rows:
        client, *ways = [part.strip() for part in row.split("|")]
        for dialect, told in zip(dialects, ways, strict=True):
            for way in [] if told == "–" else told.split(", "):
                assert way in ("whole", "streaming"), way
                cells.add(Cell(re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", client), _name(dialect), way == "streaming"))
    return cells


def _rows() -> list[str]:
    """The lines of the page's first table."""
    lines = PAGE.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    last = next(number for number, line in enumerate(lines[first:], first) if not line.startswith("|"))
    return lines[first:last]


def _name(dialect: str) -> str:
    names = {
        "Chat Completions": "chat",
        "Completions": "completions",
        "Responses": "responses",
        "Messages": "anthropic",
    }
    return names[dialect]


def test_every_cell_is_tested_and_every_test_has_a_cell():
    assert sorted(documented()) == sorted(played())


def test_every_dialect_is_played_both_ways():
    assert {(cell.dialect, cell.streaming) for cell in played()} == {
        (dialect, streaming) for dialect in PATHS for streaming in (False, True)
    }
