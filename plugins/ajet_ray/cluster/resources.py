"""A run's resource demand on a cluster, by verl's config.

Invariant: in separate_async the servers have their own accelerators. In the other modes servers share the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ajet_ray.resolvers import SEPARATE

CPUS = 4
"""CPUs of Ray for verl's trainer, queues and agents."""
CPUS_A_TRAINING, CPUS_A_SERVING = 3, 2
"""CPUs requested by verl with each accelerator."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Accelerators, nodes and Ray's CPUs."""

    training: tuple[int, int]
    """Nodes, and accelerators on each."""
    serving: tuple[int, int]
    """The demand of separate servers, all zeros without separate servers."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Demand:
        """Compute the demand from verl's `config`."""
        trainer, rollout = config["trainer"], config["actor_rollout_ref"]["rollout"]
        is_separate = trainer["v1"]["trainer_mode"] == SEPARATE
        return cls(
            (trainer["nnodes"], trainer["n_gpus_per_node"]),
            (rollout["nnodes"], rollout["n_gpus_per_node"]) if is_separate else (0, 0),
        )

    @property
    def accelerators(self) -> int:
        """Number of accelerators on all nodes."""
        return self.training[0] * self.training[1] + self.serving[0] * self.serving[1]

    @property
    def nodes(self) -> int:
        """Number of nodes of trainer and servers."""
        return self.training[0] + self.serving[0]

    @property
    def per_node(self) -> int:
        """Accelerators per node in a homogeneous cluster."""
        return max(self.training[1], self.serving[1])

    @property
    def cpus(self) -> int:
        """Slots of Ray for processes that mostly wait, not cores."""
        training, serving = (nodes * each for nodes, each in (self.training, self.serving))
        return CPUS + CPUS_A_TRAINING * training + CPUS_A_SERVING * serving

    def __str__(self) -> str:
        serving = f" to train, {self.serving[0]} × {self.serving[1]} to serve" if self.serving[0] else ""
        return f"{self.training[0]} × {self.training[1]}{serving}"
