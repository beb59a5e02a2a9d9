"""The number of accelerators and CPUs that a run needs from a Ray cluster, computed from verl's config.

Invariant: in the trainer mode separate_async the inference servers have their own accelerators. In the other modes they
share the trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ajet_ray.modes import SEPARATE

CPUS = 4
"""Ray CPUs for verl's trainer, queues and agents."""
CPUS_A_TRAINING, CPUS_A_SERVING = 3, 2
"""Ray CPUs requested by verl with each accelerator of the trainer and of separate servers."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The accelerators, nodes and Ray CPUs needed by a run."""

    training: tuple[int, int]
    """(nodes, accelerators per node) of the trainer."""
    serving: tuple[int, int]
    """(nodes, accelerators per node) of separate inference servers, or (0, 0) if they share the trainer's."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Demand:
        """Compute the demand from verl's `config`: the trainer's nodes, and those of separate inference servers."""
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
        """Accelerators that each node needs if all nodes are equal."""
        return max(self.training[1], self.serving[1])

    @property
    def cpus(self) -> int:
        """Ray CPUs of the run. They are slots for processes that mostly wait, not cores."""
        training, serving = (nodes * per_node for nodes, per_node in (self.training, self.serving))
        return CPUS + CPUS_A_TRAINING * training + CPUS_A_SERVING * serving

    def __str__(self) -> str:
        """Return the accelerators as text for an error message, such as "2 × 8 to train, 1 × 8 to serve"."""
        serving = f" to train, {self.serving[0]} × {self.serving[1]} to serve" if self.serving[0] else ""
        return f"{self.training[0]} × {self.training[1]}{serving}"
