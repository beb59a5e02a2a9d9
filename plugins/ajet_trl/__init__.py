"""TRL as a trainer behind AgentTrainer: the worked example of docs/adapters.md.

Invariants: TRL owns the optimizer and the steps, ajet the episodes: agent, gateway, judge and record are those of every
backbone, and tokens are exact. TRL is imported in `process` alone, a process of its own, which never imports verl.
"""

from ajet_trl.processor import TrlTrainer as TrlTrainer
