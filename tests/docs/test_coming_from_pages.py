"""The pages for those who come from verl and TRL: the lines that a command prints, and keys that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ajet.config import load_experiment
from ajet.config.keys import list_dotted_keys
from ajet.schema.errors import ConfigError
from tests.docs.snippets import ROOT

DOCS = ROOT / "docs"


def test_the_page_shows_the_lines_that_validate_prints(tmp_path: Path) -> None:
    page = (DOCS / "coming_from_verl.md").read_text()
    plain, lines = re.findall(r"```text\n(.*?)```", page, re.S)
    (tmp_path / "verl_grpo.yaml").write_text(plain)
    with pytest.raises(ConfigError) as caught:
        load_experiment(tmp_path / "verl_grpo.yaml").require_ready()
    assert lines.strip() in caught.value.do
    (tmp_path / "verl_grpo.yaml").write_text(lines + plain)
    load_experiment(tmp_path / "verl_grpo.yaml").require_ready()


@pytest.mark.parametrize("page", ["reference/verl_keys.md", "coming_from_trl.md"])
def test_keys_of_the_pages_are_keys_of_the_schema(page: str) -> None:
    text = (DOCS / page).read_text()
    assert len(re.sub(r"^\|.*$", "", text, flags=re.M).split()) <= 1200
    known, roots = {*list_dotted_keys()}, {key.split(".")[0] for key in list_dotted_keys()}
    last = [
        line.strip("| ").split(" | ", 1)[1] for line in text.splitlines() if line.startswith("| ") and " | " in line
    ]
    named = {key for cell in last for key in re.findall(r"`([a-z_]+(?:\.[a-z_0-9]+)+)\b", cell)}
    named = {key for key in named if key.split(".")[0] in roots}
    assert len(named) > 20 and named <= known, named - known
