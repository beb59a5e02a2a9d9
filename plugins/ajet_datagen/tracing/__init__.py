"""The task reader `tracing`: traces of a deployed agent become tasks, SFT rows and preference pairs.

Input: AgentScope spans in SQLite, OpenTelemetry GenAI spans in JSON, runs of `ajet observe`. Output: traces with
people's ratings. Invariant: dropped traces are counted by reason. An invalid row is reported with its place. Each text
passes the user's masking function, if any, before use. No question appears in both splits.
"""

from ajet_datagen.tracing.reader import TracingReader

__all__ = ["TracingReader"]
