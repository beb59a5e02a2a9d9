"""Task readers `data_generation` and `tracing`, which make training tasks from other material.

`data_generation`: a language model writes tasks from documents and examples. `tracing`: tasks come from traces
(recorded calls) of a deployed agent.
"""
