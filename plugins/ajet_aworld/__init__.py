"""AWorld's agents, played by AWorld's own runner against the gateway; its trainer's interface over ajet's runs.

`agent_loop` is the workflow, `play` runs one task, `isolation` keeps episodes apart, `tool_environment` says where the
tools are, `trainer` has AgentTrainer and its processors, `quiet_import` keeps the import of AWorld from changing the
process. The packages `train` and `env` beside `ajet/` re-export them under the names that AWorld's pages print.
"""
