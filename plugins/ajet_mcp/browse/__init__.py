"""The browse agent: a second, untrained model condenses long tool results for the purpose of a call.

It reads AgentRL's `agent_config.yml` unchanged. It returns the text shown to the trained model, and records each
request as a `ToolUse` that is not trained on. Invariants: no API key appears in a record or an error. If no model
answers, no text is invented.
"""

from ajet_mcp.browse.agent_config import BrowseAgent, browse_agent_of
from ajet_mcp.browse.condenser import Condenser

__all__ = ["BrowseAgent", "Condenser", "browse_agent_of"]
