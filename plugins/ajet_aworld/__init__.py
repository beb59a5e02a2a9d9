"""AWorld's agents, run by AWorld's runner against the gateway; the interface of its trainer on ajet's runs.

`agent_loop` is the workflow, `play` runs one task, `isolation` separates episodes, `tool_environment` configures tools,
`trainer` has AgentTrainer and its processors, `quiet_import` keeps AWorld's import from changing the process. The
packages `train` and `env` next to `ajet/` re-export the names printed on AWorld's pages.
"""
