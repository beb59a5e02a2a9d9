"""The agent of the GAIA example, same as on AWorld's page except for the system prompt."""

from aworld.agents.llm_agent import Agent
from aworld.config import AgentConfig

from train.adapter.verl.aworld_agent_loop import AworldAgentLoop
from train.adapter.verl.common import get_agent_tool_env_and_servers

SYSTEM_PROMPT = (
    "You solve the task with the tools that you have. Think step by step, check what tools answer, and when you are "
    "done write the final answer, and nothing else, between <answer> and </answer>."
)


class GaiaAgentLoop(AworldAgentLoop):
    """An agent with the tools of the GAIA environment."""

    def build_agents(self) -> Agent:
        gaia_env_config, gaia_env_servers = get_agent_tool_env_and_servers()
        return Agent(
            conf=AgentConfig(
                llm_base_url=self.get_llm_server_address(),
                llm_model_name=self.get_llm_server_model_name(),
                llm_api_key="dummy",
            ),
            name="gaia_super_agent",
            system_prompt=SYSTEM_PROMPT,
            mcp_config=gaia_env_config,
            mcp_servers=gaia_env_servers,
        )
