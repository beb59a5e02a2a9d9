"""What gates ask of the machine: ports, servers of MongoDB and SGLang, sandboxes, and waiting for others.

The helpers stay where they are; gates import them from here, so that they can move.
"""

from tests.mongod import Mongod
from tests.ports import free_port
from tests.sandbox_fixtures import require
from tests.sglang_server import SglangProcess
from tests.waiting import until

__all__ = ["Mongod", "SglangProcess", "free_port", "require", "until"]
