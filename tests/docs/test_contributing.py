"""CONTRIBUTING.md, AGENTS.md and the skills: named files exist, map and table are complete, front matter is valid.

Their commands and snippets run in test_snippets.py.
"""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from ajet.config.plugin import NAMED_KINDS, Plugin
from tests.docs.snippets import ROOT

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PATH = re.compile(r"`((?:ajet|plugins|tests|docs|scripts|tutorial|skills|benchmarks|constraints)/[\w./-]*)`")
MAKE = re.compile(r"\bmake ([a-z-]+)")


@pytest.mark.parametrize(("page", "most_words"), [("CONTRIBUTING.md", 900), ("AGENTS.md", 400)])
def test_every_named_path_and_target_exists(page: str, most_words: int) -> None:
    text = (ROOT / page).read_text()
    named = PATH.findall(text)
    assert len(named) > 5 and [path for path in named if not (ROOT / path).exists()] == []
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert len(MAKE.findall(text)) > 3 and set(MAKE.findall(text)) <= set(targets)
    assert len(text.split()) <= most_words


def test_the_map_has_every_package() -> None:
    folders = [*ROOT.glob("ajet/*/__init__.py"), *ROOT.glob("plugins/*/plugin.py")]
    packages = {file.parent.relative_to(ROOT).as_posix() for file in folders}
    assert packages <= set(PATH.findall(CONTRIBUTING.split("## Add a part")[0]))


def test_the_table_has_every_kind_of_part() -> None:
    rows = [line.strip("|").split("|") for line in CONTRIBUTING.split("## Add a part")[1].splitlines() if "|" in line]
    kinds = {kind for row in rows for kind in re.findall(r"`(\w+)`", row[0])}
    assert kinds == set(NAMED_KINDS)
    lines = {name for row in rows[2:] for name in re.findall(r"`(\w+)`", row[2])}
    assert len(lines) > len(kinds) and lines <= {field.name for field in fields(Plugin)}


@pytest.mark.parametrize("skill", sorted(ROOT.glob("skills/*")), ids=lambda skill: skill.name)
def test_a_skill_follows_the_convention(skill: Path) -> None:
    text = (skill / "SKILL.md").read_text()
    _, front, body = text.split("---\n", 2)
    matter = yaml.safe_load(front)
    assert matter.keys() == {"name", "description"} and matter["name"] == skill.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", skill.name) and len(skill.name) <= 64
    assert "Use when" in matter["description"] and len(matter["description"]) <= 1024
    assert len(text.split()) <= 350 and "```bash" in body
    assert [path for path in PATH.findall(body) if not (ROOT / path).exists()] == []
