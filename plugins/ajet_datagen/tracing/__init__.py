"""The task reader `tracing`: traces of a deployed agent as tasks, training rows and preference pairs.

In: AgentScope spans in SQLite, OpenTelemetry GenAI spans in JSON, runs of `ajet observe`. Out: traces with ratings.
Invariant: dropped traces are counted by reason; a bad row is named; each text passes the user's masking function, if
any, before use; no question appears in both splits.
"""

from ajet_datagen.tracing.reader import TracingReader

__all__ = ["TracingReader"]
