"""Module `train.adapter.verl.aworld_agent_loop` of AWorld's layout, explained in the docstring of `train`."""

from ajet_aworld.agent_loop import AworldAgentLoop as AworldAgentLoop
