"""What these tests share: the trained run of the kernel's contract tests, and a real server of MongoDB."""

from tests.contract.conftest import tool_project  # noqa: F401
from tests.support.mongod import mongod  # noqa: F401
