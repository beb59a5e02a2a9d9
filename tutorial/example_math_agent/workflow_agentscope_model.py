"""The same agent with an AgentScope model of its own name: what several agents in one workflow need."""

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg
from agentscope.tool import Toolkit, execute_python_code
from python_tool import SYSTEM_PROMPT

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class MathAgentWorkflow(Workflow):
    name: str = "math_agent_agentscope_model"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        toolkit = Toolkit()
        toolkit.register_tool_function(execute_python_code)
        agent = ReActAgent(
            name="math_react_agent",
            sys_prompt=SYSTEM_PROMPT,
            model=tuner.as_agentscope_model(agent_name="math_react_agent"),
            formatter=OpenAIChatFormatter(),
            toolkit=toolkit,
            memory=InMemoryMemory(),
            max_iters=2,
        )
        agent.set_console_output_enabled(False)
        result = await agent.reply(Msg("user", workflow_task.task.main_query, role="user"))
        return WorkflowOutput(metadata={"final_answer": result.get_text_content()})
