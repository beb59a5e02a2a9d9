"""The Chinese pages say what the English ones say: the same commands and code, the same rows, names in them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, Block, blocks

PAGES = ["README.md", *sorted(f"docs/{page.name.replace('_zh', '')}" for page in (ROOT / "docs").glob("*_zh.md"))]
OTHER_SOURCE = {"docs/first_agent.md"}
"""Its Chinese page keeps the steps of the tutorial that Chinese readers bring."""
VERDICTS = {"same": "相同", "other": "改名", "better": "更好", "gone": "没有"}


def chinese(page: str) -> Path:
    return ROOT / page.replace(".md", "_zh.md")


def code(block: Block) -> tuple[str, ...]:
    """What runs: without comments, which are in the page's language."""
    lines = block.text.splitlines()
    if block.language in ("python", "yaml", "bash"):
        lines = [re.sub(r"(^|\s)#\s.*", "", line) for line in lines]
    return block.language, block.title, *(line.rstrip() for line in lines if line.strip())


def cells(page: Path) -> list[list[str]]:
    """The rows of all tables."""
    lines = page.read_text().splitlines()
    return [re.split(r"(?<!\\) \| ?", line.strip()[2:-2]) for line in lines if line.startswith("| ")]


def names(text: str) -> Counter[str]:
    return Counter(re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize("page", [page for page in PAGES if page not in OTHER_SOURCE])
def test_each_block_and_each_row_stands_in_the_chinese_page(page):
    english, other = ROOT / page, chinese(page)
    assert [code(block) for block in blocks(other)] == [code(block) for block in blocks(english)]
    theirs, ours = cells(other), cells(english)
    assert len(theirs) == len(ours)
    for there, here in zip(theirs, ours, strict=True):
        assert [names(cell) for cell in there] == [names(cell) for cell in here]
        assert [VERDICTS.get(cell) for cell in here] == [cell if cell in VERDICTS.values() else None for cell in there]
    heads = [re.findall(r"^#+ ", path.read_text(), re.M) for path in (other, english)]
    assert heads[0] == heads[1]
