"""Module `train.adapter.common` of AWorld's layout, explained in the docstring of `train`."""

from ajet_aworld.tool_environment import get_agent_tool_env_and_servers as get_agent_tool_env_and_servers
