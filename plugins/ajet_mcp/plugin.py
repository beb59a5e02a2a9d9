"""Descriptor of the package, read before the package is loaded."""

from __future__ import annotations

from ajet.config.plugin import ConfigKeys, Plugin, PluginPart

PLUGIN = Plugin(
    name="ajet_mcp",
    about="tools of MCP servers, the agent that uses them, and the model that condenses their long results",
    workflows={
        "mcp_agent": PluginPart(
            "ajet_mcp.agent:McpAgentWorkflow",
            variables=("MCP_SERVER_TOKEN", "BROWSE_LLM_BASE_URL", "BROWSE_LLM_MODEL_NAME", "BROWSE_LLM_API_KEY"),
        ),
    },
    services=("ajet_mcp.reachable:services_of", "ajet_mcp.reachable:list_browse_models"),
    config_keys=(ConfigKeys("rollout", "ajet_mcp.config:AgentKeys"),),
    exports={"MCPSampler": "ajet_mcp.agent.sampler:MCPSampler"},
)
