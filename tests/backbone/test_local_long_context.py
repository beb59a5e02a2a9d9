"""An update over samples of 32K tokens stays in the memory that its length needs: the benchmark's own, in a process of
its own, whose peak nothing else of this one is in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extra_slow

ROOT = Path(__file__).resolve().parents[2]
LENGTH = 32768
A_TOKEN = 24 * 1024
"""Bytes; 11 to 14 thousand were measured. A mask for each block of queries would alone be 64 thousand."""


@pytest.mark.parametrize("kind", ["tree", "window"])
def test_an_update_over_32k_tokens(kind):
    command = [sys.executable, "benchmarks/bench_long.py", "--one", kind, "--lengths", str(LENGTH)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True, timeout=1200
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["computed"] < 1.2 * LENGTH <= 1.2 * found["tokens"]
    assert found["bytes"] < A_TOKEN * LENGTH
