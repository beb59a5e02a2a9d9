"""Worlds of other processes, by wire: an environment service asked, served, checked and started beside a run.

What enters: an address, or a class of a person's or of another ecosystem's. What leaves: a `GymEnv` for each attempt.
Invariant: there is one client, one protocol and one set of failures; another ecosystem is brought in behind our own
server (`hosted`, `openenv`, `nemo_gym`), never by a second client. Ours are the failures of `ajet.schema.errors`.
"""

from ajet.environment.services.gym_env import GymEnv, Step
from ajet.environment.services.wire import EnvService

__all__ = ["EnvService", "GymEnv", "Step"]
