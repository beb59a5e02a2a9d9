"""The newest vLLM for CPUs, in an environment of its own: the tests of the engine and of its server pass there, too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ajet.schema.errors import UserError
from ajet_vllm.vllm_server import RemoteVllm
from scripts.environments import get_environment
from tests.support.environments import ROOT, find_environment_python
from tests.support.vllm_fixtures import VOCABULARY, vllm_server

VERSION = get_environment("vllm-newest").packages[0].partition("==")[2]
pytestmark = [pytest.mark.extra_slow, pytest.mark.boots]


@pytest.mark.parametrize(
    "tests",
    [
        ["plugins/ajet_vllm/tests/test_vllm_engine.py"],
        ["tests/contract/test_token_engines.py", "-k", "vllm or a_server"],
        ["plugins/ajet_vllm/tests/test_server_follower_vllm.py", "-k", "a_server_is_given"],
        ["plugins/ajet_vllm/tests/test_engine_learns.py", "-k", "tool_agent_learns"],
    ],
    ids=lambda tests: Path(tests[0]).stem,
)
def test_the_engines_tests_pass_with_it(tests: list[str]) -> None:
    command = [str(find_environment_python("vllm-newest")), "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", *tests]
    outer = ("PYTEST_XDIST", "PYTEST_CURRENT")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    environment["PYTHONPATH"] = str(ROOT / "tests" / "support")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-5000:]


def test_a_server_without_the_route_says_how_to_start_it() -> None:
    with (
        vllm_server(python=find_environment_python("vllm-newest")) as address,
        pytest.raises(UserError, match="--enable-scale-out") as refused,
    ):
        RemoteVllm(address, vocabulary=VOCABULARY)
    assert VERSION in str(refused.value)
