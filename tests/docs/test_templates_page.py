"""The table of docs/reference/templates.md says what rehearsing each family's template gives.

`python -m tests.docs.test_templates_page` writes the table anew.
"""

import re

from ajet.tokens import Renderer
from ajet.tokens.template_doctor import TURNS, examine
from tests.docs.snippets import ROOT
from tests.support.published_templates import FAMILIES, family

PAGE = ROOT / "docs" / "reference" / "templates.md"
STATES = {"ok": "extends", "warning": "forks", "note": "one call a reply"}
NAMES = {
    "qwen2.5": "Qwen2.5",
    "qwen3": "Qwen3",
    "qwen3.5": "Qwen3.5, Qwen3-Coder",
    "llama3": "Llama 3",
    "llama3.2": "Llama 3.1, 3.2",
    "smollm2": "SmolLM2",
    "hermes": "Hermes",
    "glm4.5": "GLM-4.5",
    "gpt-oss": "gpt-oss (harmony)",
}


def row(name: str) -> str:
    renderer = Renderer(family(name))
    found = {each.topic: each for each in examine(renderer)}
    question = found["answers"] if "answers" in found else found["thinking"]
    turns = [STATES[each.state] for each in (question, found["tool call"], found["several calls"])]
    costs = [cost(found[f"episode of {TURNS} {what}"].text) for what in ("answers", "tool calls")]
    return f"| {NAMES[name]} | {renderer.template.style} | {' | '.join([*turns, *costs])} |"


def cost(text: str) -> str:
    told = re.search(r"([\d.]+) times the tokens", text)
    return f"× {told[1]}" if told else "× 1"


def table() -> str:
    head = "| Family | Calls | Next question | First tool result | Several calls | 8 answers | 8 tool calls |"
    return "\n".join([head, "|---" * 7 + "|", *map(row, NAMES)]) + "\n"


def test_the_table_is_what_the_templates_do():
    assert set(NAMES) == set(FAMILIES)
    page = PAGE.read_text(encoding="utf-8")
    assert page[page.index("| Family ") :] == table(), "`python -m tests.docs.test_templates_page` writes it anew"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page[: page.index("| Family ")] + table(), encoding="utf-8")
