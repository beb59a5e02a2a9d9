"""See `train`."""

from ajet_aworld.agent_loop import AworldAgentLoop as AworldAgentLoop
