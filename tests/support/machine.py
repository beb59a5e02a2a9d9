"""What gates ask of the machine: free ports, a MongoDB, sandboxes, and waiting for another process or thread.

The helpers stay where they are; gates import them from here, so that they can move.
"""

from tests.mongod import Mongod
from tests.ports import free_port
from tests.sandbox_fixtures import require
from tests.waiting import until

__all__ = ["Mongod", "free_port", "require", "until"]
