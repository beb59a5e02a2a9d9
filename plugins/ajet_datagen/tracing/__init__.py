"""The reader `tracing`: what a deployed agent was asked and said, as tasks, rows to learn and pairs.

In: AgentScope's spans in SQLite, OpenTelemetry's GenAI spans in JSON, runs of `ajet observe`. Out: traces with what
people thought of them. Invariant: what is left out is counted by its reason; a bad row is named; each text passes the
user's masking function before it is used, if there is one; no question of one split is in the other.
"""

from ajet_datagen.tracing.reader import TracingReader

__all__ = ["TracingReader"]
