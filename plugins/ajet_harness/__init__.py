"""ajet_harness: presets of coding agents for `command_agent.harness`, and their installation."""
