"""What is generated from the code is up to date."""

import re

import pytest

from ajet.cli.docs import ROOT, cli_md, generated, in_chinese
from ajet.config.generate import configuration_sentences
from ajet.config.schema import AjetConfig
from ajet.config.schema.base import walk

CODE = re.compile(r"`[^`]+`|\{\w+\}")
FILES = [
    "default_config/ajet_default.yaml",
    "docs/configuration.md",
    "docs/configuration_zh.md",
    "docs/architecture.md",
    "docs/algorithms.md",
    "docs/cli.md",
    "docs/verl_keys.md",
    "docs/openapi.json",
    "ajet/record/viewer/page/definitions.js",
]


@pytest.mark.parametrize("name", FILES)
def test_it_says_what_the_code_says(name):
    assert (ROOT / name).read_text() == generated()[ROOT / name], "`make docs` writes it anew"


def test_every_file_is_listed_here():
    assert sorted(FILES) == sorted(str(path.relative_to(ROOT)) for path in generated())


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


def test_the_chinese_words_name_the_same_keys_and_places():
    """What is code, and what is filled in, is in no language."""
    for english, chinese in in_chinese().items():
        assert set(CODE.findall(chinese)) == set(CODE.findall(english)), english


def test_the_chinese_words_are_those_of_the_page():
    """What changes in English stands there in English until somebody puts it into Chinese."""
    said = configuration_sentences()
    assert sorted(in_chinese().keys() - set(said)) == [], "no sentence of the page"
    english = [sentence for sentence in said if sentence not in in_chinese()]
    assert len(english) <= len(said) // 20, english
