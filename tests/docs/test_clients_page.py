"""The table in docs/clients.md has a cell for each tested (client, dialect, way), and no other."""

import re

from tests.docs.snippets import ROOT
from tests.support.client_fixtures import PATHS, Cell, all_plays

PAGE = ROOT / "docs" / "clients.md"


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
    assert sorted(documented()) == sorted(all_plays())


def test_every_dialect_is_played_both_ways():
    assert {(cell.dialect, cell.streaming) for cell in all_plays()} == {
        (dialect, streaming) for dialect in PATHS for streaming in (False, True)
    }
