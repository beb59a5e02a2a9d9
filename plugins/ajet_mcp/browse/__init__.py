"""The browse agent: a second model that condenses long results of tools for the purpose of a call.

What enters: AgentRL's `agent_config.yml` as it is, results of the tools that it names. What leaves: what the model that
plays is shown in their place, and each question as a `ToolUse`, which is never trained. Invariants: a key is in nothing
that is written or raised; where no model answers, nothing is made up.
"""

from ajet_mcp.browse.agent_config import BrowseAgent, browse_agent_of
from ajet_mcp.browse.condenser import Condenser

__all__ = ["BrowseAgent", "Condenser", "browse_agent_of"]
