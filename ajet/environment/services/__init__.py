"""Worlds of other processes, by wire: an environment service asked.

What enters: an address, or what a plug-in serves beside the run. What leaves: a `GymEnv` for each attempt. Invariant:
there is one client, one protocol and one set of failures, those of `ajet.schema.errors`.
"""

from ajet.environment.services.gym_env import GymEnv, Step
from ajet.environment.services.wire import EnvService

__all__ = ["EnvService", "GymEnv", "Step"]
