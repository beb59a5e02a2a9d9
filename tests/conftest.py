"""Shared by all tests: one torch thread (two busy processes on two cores are many times slower with more), no hub;
which worker runs what; and that nothing is left behind (left_behind.py).

Two workers share the tests. What boots Ray or vLLM is one worker's, first of all, so that each is booted once and the
other worker does the rest meanwhile; a file's tests stay together, for they share what the file sets up.
"""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import functools

import pytest
from omegaconf import _utils, base, grammar_parser

from tests import costs, left_behind

pytest.register_assert_rewrite("tests.client_fixtures")

BOOTS = "boots"
"""The mark of tests that boot Ray or vLLM."""


def pytest_configure(config: pytest.Config) -> None:
    costs.register(config)
    left_behind.register(config)
    # hundreds of configurations are composed, of the same few interpolations: parsing them is most of the time
    _utils.parse = base.parse = grammar_parser.parse = functools.lru_cache(maxsize=None)(grammar_parser.parse)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> tuple[bool, bool]:
        """Long files first, so that no worker is left with one at the end."""
        return item.get_closest_marker(BOOTS) is None, item.get_closest_marker("slow") is None

    files: dict[str, tuple[bool, bool]] = {}
    for item in items:
        name = item.nodeid.split("::")[0]
        files[name] = min(files.get(name, (True, True)), place(item))
    for item in items:
        name = item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group(BOOTS if not files[name][0] else name))
    items.sort(key=lambda item: files[item.nodeid.split("::")[0]])


def pytest_collection_finish() -> None:
    """What was imported so far is nobody's garbage: collections that the code under test asks for leave it alone."""
    gc.collect()
    gc.freeze()
