"""See `train`."""

from ajet.integration.aworld.agent_loop import AworldAgentLoop as AworldAgentLoop
