"""Client of environment services over HTTP.

Input: an address, or a world served by a plug-in. Output: a `GymEnv` per attempt. Invariant: a single client, a single
protocol, and the failures of `ajet.schema.errors`.
"""

from ajet.environment.services.gym_env import GymEnv, Step
from ajet.environment.services.wire import EnvService

__all__ = ["EnvService", "GymEnv", "Step"]
