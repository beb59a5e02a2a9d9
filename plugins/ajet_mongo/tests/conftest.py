"""What these tests share: a real server of MongoDB."""

from tests.support.mongod import mongod  # noqa: F401
