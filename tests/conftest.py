"""What the kernel's tests share. Order, threads and the look for what is left behind are those of `ajet_testing`."""

import pytest

from tests.support.mongod import mongod  # noqa: F401

pytest.register_assert_rewrite("tests.support.client_fixtures")
