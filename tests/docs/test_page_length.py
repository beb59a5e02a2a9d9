"""Hand-written pages are short, and so are their sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.snippets import PAGES, ROOT

MOST_WORDS = 1200
MOST_WORDS_A_SENTENCE = 20
ENGLISH = [page for page in [*PAGES, *ROOT.glob("*.md")] if not page.stem.endswith("_zh")]
"""Chinese has no spaces; its pages have the blocks and rows of the English ones (test_chinese_pages.py)."""


def mean_sentence(text: str) -> float:
    """Return the mean words of a page's sentences.

    A code span is one word; headings, tables and code blocks do not count.
    """
    sentences: list[str] = []
    prose = re.sub(r"^(\||#).*$", "", text, flags=re.M)
    for token in MarkdownIt("commonmark").parse(prose):
        if token.type == "inline":
            words = "".join(
                "CODE" if each.type == "code_inline" else each.content or " " for each in token.children or ()
            )
            sentences += [each for each in re.split(r"(?<=[.!?])\s+", words) if each.strip()]
    return sum(len(each.split()) for each in sentences) / max(1, len(sentences))


@pytest.mark.parametrize("page", sorted({*ENGLISH}), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_and_its_sentences_are_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS
    assert mean_sentence(text) < MOST_WORDS_A_SENTENCE
