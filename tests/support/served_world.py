"""The world of `ajet serve` under faults of its disk, its engine and its clients: names for gates."""

from tests.faulty_disk import Kind, ServeFaults, faulty
from tests.serve_injector import ServedWorld

__all__ = ["Kind", "ServeFaults", "ServedWorld", "faulty"]
