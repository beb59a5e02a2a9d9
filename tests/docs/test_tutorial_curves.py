"""A tutorial that says what was learned shows it: its README embeds a curve that exists, small and described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT

READMES = sorted((ROOT / "tutorial").glob("*/README.md"))
EMBEDDED = re.compile(r"!\[([^\]]+)\]\(([^)\s]+\.png)\)")


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)
def test_a_claim_has_its_picture(readme: Path) -> None:
    found = EMBEDDED.findall(readme.read_text())
    assert found
    for described, place in found:
        picture = (readme.parent / place).resolve()
        assert picture.is_file() and picture.read_bytes().startswith(b"\x89PNG") and len(described) > 30
        assert picture.is_relative_to(ROOT / "docs") or picture.stat().st_size < 60_000
