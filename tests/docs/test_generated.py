"""What generated pages are made from is complete. `make check` holds that each page is up to date."""

import re
from collections import Counter

from ajet.config.schema.base import walk_keys
from ajet.config.schema.extended import config_model
from ajet.schema.errors import BoundaryError, UserError
from scripts.reference.configuration import COMMON_KEYS, configuration_md
from scripts.reference.errors import errors_md
from scripts.reference.pages import ROOT, cli_md


def test_every_key_says_what_it_is_for():
    undescribed = [
        ".".join(path)
        for path, field, _ in walk_keys(config_model(shipped=True))
        if not (field.description or "").strip()
    ]
    assert undescribed == []


def test_every_key_has_one_row_and_forty_are_marked():
    section, rows, marked = "", Counter[str](), set()
    for line in configuration_md().split("## Accepted")[0].splitlines():
        if heading := re.match(r"#+ (?:`ajet\.([\w.]+))?", line):
            section = f"{heading[1]}." if heading[1] else ""
        elif row := re.match(r"\| (\**)`([\w.]+)`", line):
            rows[section + row[2]] += 1
            if row[1]:
                marked.add(section + row[2])
    known = {".".join(path) for path, _, _ in walk_keys(config_model(shipped=True))}
    assert len(COMMON_KEYS) == 40 and marked == set(COMMON_KEYS)
    assert rows == {key: 1 + (key in marked) for key in known}


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


def test_every_error_is_on_its_page():
    page = errors_md(ROOT)
    waiting: list[type] = [UserError, *BoundaryError.__subclasses__()]
    for each in waiting:
        waiting += each.__subclasses__()
    named = {f"`{each.__module__}.{each.__name__}`" for each in waiting if each.__module__.startswith("ajet")}
    assert len(named) > 30
    assert sorted(name for name in named if name not in page) == []
