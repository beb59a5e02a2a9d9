"""What these tests share: a real server of MongoDB."""

from tests.mongod import mongod  # noqa: F401
