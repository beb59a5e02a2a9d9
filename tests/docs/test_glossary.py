"""docs/glossary.md has one entry a word, each of a room that there is."""

import re

from tests.docs.snippets import ROOT

PAGE = (ROOT / "docs" / "glossary.md").read_text()


def test_a_word_has_one_entry():
    words = re.findall(r"^\*\*([^*]+)\*\*", PAGE, re.M)
    assert len(words) > 30
    assert sorted({word for word in words if words.count(word) > 1}) == []


def test_an_entry_names_rooms_that_are_there():
    rooms = [room for named in re.findall(r"\*\(([^)]+)\)\*$", PAGE, re.M) for room in named.split(", ")]
    assert len(rooms) > 30
    places = (ROOT / "ajet", ROOT / "plugins")
    assert sorted({room for room in rooms if not any((place / room).is_dir() for place in places)}) == []
