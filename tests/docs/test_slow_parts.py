"""Every extra slow test belongs to one part of `make test-slow`, so that none is forgotten."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def collected(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_each_is_in_one_part():
    spec = importlib.util.spec_from_file_location("slow_parts", ROOT / "scripts" / "slow_parts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["slow_parts"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    every = collected("-m", "extra_slow")
    booting = set(collected("-m", "extra_slow and boots"))
    parted = []
    for part in module.PARTS:
        of_it = [test for test in every if (test in booting) == part.boots and test.startswith(part.paths)]
        assert of_it, part.name
        parted += of_it
    assert sorted(parted) == sorted(every)
