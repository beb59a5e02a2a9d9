"""Every extra slow test belongs to one part of `make test-slow`, so that none is forgotten."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ajet_testing.plugin import MARKS, MISSING_FIXTURES

ROOT = Path(__file__).resolve().parents[2]


def test_each_is_in_one_part(request: pytest.FixtureRequest) -> None:
    spec = importlib.util.spec_from_file_location("slow_parts", ROOT / "scripts" / "slow_parts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["slow_parts"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    marks = request.config.stash[MARKS]
    every = [test for test in marks if "extra_slow" in marks[test]]
    for test in every:
        parts = [p.name for p in module.PARTS if test.startswith(p.paths) and p.boots == ("boots" in marks[test])]
        assert len(parts) == 1, (test, parts)
    files = [*ROOT.glob("tests/*/test_*.py"), *ROOT.glob("plugins/*/tests/test_*.py")]
    if len({test.split("::")[0] for test in marks}) == len(files):
        for part in module.PARTS:
            assert any(test.startswith(part.paths) and part.boots == ("boots" in marks[test]) for test in every), part


def test_tests_left_out_name_existing_fixtures(request: pytest.FixtureRequest) -> None:
    assert request.config.stash[MISSING_FIXTURES] == {}
