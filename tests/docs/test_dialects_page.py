"""The generated page of dialects names every field that a dialect takes, each once, and no other."""

import re

import pytest

from ajet.gateway.dialects import chat, completions
from ajet.gateway.dialects.anthropic import dialect as anthropic
from ajet.gateway.dialects.gemini import dialect as gemini
from ajet.gateway.dialects.responses import dialect as responses
from scripts.reference.dialects import dialects_md


@pytest.mark.parametrize(
    ("title", "taken"),
    [
        ("Chat Completions", chat.TAKEN),
        ("Completions", completions.TAKEN),
        ("Responses", responses.TAKEN),
        ("Messages", anthropic.TAKEN),
        ("Gemini", gemini.TAKEN),
    ],
)
def test_the_fields_of_a_dialect_are_on_its_table(title, taken):
    section = dialects_md().split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert sorted(named) == sorted(taken)
