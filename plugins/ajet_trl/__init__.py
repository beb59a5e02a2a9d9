"""TRL as a trainer behind AgentTrainer: the example of docs/adapters.md.

Invariants: TRL owns the optimizer and the steps, ajet the episodes: agent, gateway, judge and record are those of every
backbone, and tokens are exact. Only `process`, a separate process without verl, imports TRL.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Load the processor on first use: ajet imports this file to list its plug-ins."""
    if name != "TrlTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ajet_trl.processor import TrlTrainer

    return TrlTrainer
