"""An update of 32K tokens through verl's FSDP engine, its rows split over two gloo ranks: the benchmark's own world."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.verl_fixtures import without_verl

pytestmark = [pytest.mark.verl, without_verl, pytest.mark.extra_slow]

ROOT = Path(__file__).resolve().parents[3]
LENGTH = 32768
A_TOKEN = 16 * 1024
"""Bytes on a rank; 9.5 thousand were measured. A mask for each block of queries would alone be 64 thousand."""
PROGRAM = """
import json, sys
sys.path.insert(0, "benchmarks")
from bench_long_verl import world
if __name__ == "__main__":
    print(json.dumps(world("tree", int(sys.argv[1]), 2)))
"""


def test_an_update_over_32k_tokens_on_two_ranks():
    command = [sys.executable, "-c", PROGRAM, str(LENGTH)]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | own, stdout=subprocess.PIPE, check=True, timeout=1200)
    ranks = json.loads(done.stdout.splitlines()[-1])
    assert len(ranks) == 2 and ranks[0]["norm"] == ranks[1]["norm"] > 0
    for rank in ranks:
        assert rank["computed"] < 1.2 * LENGTH <= 1.2 * rank["tokens"]
        assert rank["bytes"] < A_TOKEN * LENGTH
