"""The SDK's client with the other line of the package: the same suites, in a process that has it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.mcp_two import python_with_mcp_two

SUITES = ("tests/contract/test_mcp_clients.py", "tests/faults/test_mcp_faults.py")
RUNS = """
import sys
sys.path.insert(0, sys.argv[1])  # not inherited: servers of the first line stay what they are
import pytest
code = pytest.main(["-n0", "-v", "-p", "no:cacheprovider", "-k", "sdk and not reference", *sys.argv[2:]])
import mcp
assert mcp.__file__.startswith(sys.argv[1]), mcp.__file__
sys.exit(code)
"""


@pytest.mark.extra_slow
def test_the_contract_and_the_faults_hold_with_the_packages_second_line_as_client() -> None:
    """The same tests with the first line fail for most of the same defects."""
    [packages] = python_with_mcp_two().parents[1].glob("lib/python*/site-packages")
    command = [sys.executable, "-c", RUNS, str(packages), *SUITES]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 20, done.stdout[-3000:]
