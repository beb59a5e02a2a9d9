"""What these tests share with the kernel's: a real server of MongoDB."""

from tests.support.mongod import mongod  # noqa: F401
