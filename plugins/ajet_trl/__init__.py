"""TRL as a trainer behind AgentTrainer: the worked example of docs/adapters.md.

Invariants: TRL owns the optimizer and the steps, ajet the episodes: agent, gateway, judge and record are those of every
backbone, and tokens are exact. TRL is imported in `process` alone, a process of its own, which never imports verl.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Load the processor when it is first used: ajet imports this file whenever it lists its plug-ins."""
    if name != "TrlTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ajet_trl.processor import TrlTrainer

    return TrlTrainer
