"""What is generated from the code is up to date."""

from pathlib import Path

import pytest

from ajet.config.schema import AjetConfig
from ajet.config.schema.base import walk
from scripts.reference.__main__ import build_files
from scripts.reference.pages import ROOT, cli_md

FILES = [
    "default_config/ajet_default.yaml",
    "docs/configuration.md",
    "docs/architecture.md",
    "docs/algorithms.md",
    "docs/cli.md",
    "docs/verl_keys.md",
    "docs/openapi.json",
    "docs/public_surface.txt",
    "ajet/record/viewer/page/definitions.js",
]


@pytest.fixture(scope="module")
def written() -> dict[Path, str]:
    """Every generated file with the text it should have, made once: it takes seconds."""
    return build_files()


@pytest.mark.parametrize("name", FILES)
def test_it_says_what_the_code_says(name, written):
    assert (ROOT / name).read_text() == written[ROOT / name], "`make docs` writes it anew"


def test_every_file_is_listed_here(written):
    assert sorted(FILES) == sorted(str(path.relative_to(ROOT)) for path in written)


def test_every_key_says_what_it_is_for():
    undescribed = [".".join(path) for path, field, _ in walk(AjetConfig) if not (field.description or "").strip()]
    assert undescribed == []


def test_every_option_of_the_interface_is_there():
    text = cli_md()
    flags = ["--conf", "--backbone", "--exp-dir", "--with-ray", "--with-ray-cluster", "--with-logview", "--debug"] + [
        "--skip-check-avail-gpu",
        "--autokill",
        "--kill",
        "--prefix",
        "--dry-run",
        "--fresh",
        "--resume",
    ]
    for flag in flags:
        assert f"`{flag}" in text, flag
