"""Trains agents of the AWorld framework: AWorld runs them, and their model calls go to ajet's gateway (model server).

`agent_loop` is the workflow, `play` runs one task, `isolation` separates concurrent episodes, `tool_environment`
configures tools, `trainer` offers AWorld's trainer interface on ajet's runs, `quiet_import` keeps AWorld's import from
changing the process. The packages `train` and `env` next to `ajet/` re-export the names printed on AWorld's pages.
"""
