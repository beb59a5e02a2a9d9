"""What these tests share with the kernel's: a real server of MongoDB."""

from tests.mongod import mongod  # noqa: F401
