"""Shared by all tests: one torch thread (two busy processes on two cores are many times slower with more), no hub."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

pytest.register_assert_rewrite("tests.client_fixtures")


def pytest_configure(config: pytest.Config) -> None:
    from tests import costs

    costs.register(config)
