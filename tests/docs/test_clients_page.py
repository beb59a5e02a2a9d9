"""The table in docs/reference/clients.md has a cell for each tested (client, dialect, way), and no other.

`python -m tests.docs.test_clients_page` writes the table anew.
"""

from tests.docs.snippets import ROOT
from tests.support.client_fixtures import PATHS, Cell, all_plays

PAGE = ROOT / "docs" / "reference" / "clients.md"
TITLES = {
    "chat": "Chat Completions",
    "completions": "Completions",
    "responses": "Responses",
    "anthropic": "Messages",
    "gemini": "Gemini",
}


def table() -> str:
    """Return the table: the tested ways of each client in each dialect."""
    cells = set(all_plays())
    lines = [f"| Client | {' | '.join(TITLES.values())} |", "|---" * (len(TITLES) + 1) + "|"]
    for client in dict.fromkeys(cell.client for cell in all_plays()):
        ways = [
            ", ".join(way for way, streaming in WAYS if Cell(client, dialect, streaming) in cells) or "–"
            for dialect in TITLES
        ]
        lines.append(f"| {client} | {' | '.join(ways)} |")
    return "\n".join(lines) + "\n"


WAYS = (("whole", False), ("streaming", True))


def test_the_table_shows_the_tests():
    page = PAGE.read_text(encoding="utf-8")
    assert page[page.index("| Client ") :] == table(), "`python -m tests.docs.test_clients_page` writes it anew"


def test_every_dialect_is_played_both_ways():
    assert {(cell.dialect, cell.streaming) for cell in all_plays()} == {
        (dialect, streaming) for dialect in PATHS for streaming in (False, True)
    }


if __name__ == "__main__":
    written = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(written[: written.index("| Client ")] + table(), encoding="utf-8")
