"""The Chinese pages say what the English ones say: the same commands and code, the same rows, names in them."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.docs.snippets import ROOT, Block, blocks, commands, merge

PAGES = ["README.md", *sorted(f"docs/{page.name.replace('_zh', '')}" for page in (ROOT / "docs").glob("*_zh.md"))]
OTHER_SOURCE = {"docs/first_agent.md"}
"""Its Chinese page keeps the steps and the code of AgentJet's tutorial, which Chinese readers bring and compare line by
line: other headings, a whole block where the English page adds to one, attributes of the workflow where that has local
names. What both have a reader type and write comes to the same, as the last test holds."""
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


def typed(page: Path) -> list[list[str]]:
    """What is run, a file at a time where one command makes several."""
    found = [words for block in blocks(page) if block.language == "bash" for words in commands(block)]
    return [each for words in found for each in ([["touch", file] for file in words[1:]] if words[0] == "touch"
                                                 else [words])]  # fmt: skip


def written(page: Path, language: str) -> list[Block]:
    return [block for block in blocks(page) if block.title and block.language == language]


def agents(page: Path) -> list[tuple[str, set[str]]]:
    """The calls of the workflow's file: what is called, and by which arguments, in any order of the lines."""
    (block,) = written(page, "python")
    tree = ast.parse(block.text.replace("self.", ""))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [
        (ast.unparse(call.func).removeprefix("self."), {str(word.arg) for word in call.keywords}) for call in calls
    ]
    return sorted((name, words) for name, words in named)


def test_both_pages_of_the_first_agent_come_to_the_same():
    english, other = ROOT / "docs/first_agent.md", ROOT / "docs/first_agent_zh.md"
    assert typed(other) == typed(english) and len(typed(english)) > 8
    trees: list[dict] = []
    for page in (english, other):
        trees.append({})
        for block in written(page, "yaml"):
            merge(trees[-1], yaml.safe_load(block.text))
    assert {name: trees[1][name] for name in trees[0]} == trees[0] and {*trees[1]} - {*trees[0]} <= {
        "hydra",
        "defaults",
    }
    assert trees[0]["ajet"]["rollout"]["user_workflow"] == "workflow.py->MathAgentWorkflow"
    assert agents(other) == agents(english)
    launches = [
        [json.loads(block.text) for block in blocks(page) if block.language == "json"] for page in (english, other)
    ]
    assert launches[0] == launches[1] != []
