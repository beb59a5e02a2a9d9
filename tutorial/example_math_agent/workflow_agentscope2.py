"""The same agent with AgentScope 2, which has `Agent` in place of `ReActAgent`."""

from agentscope.agent import Agent, InjectionConfig, ReActConfig
from agentscope.message import UserMsg
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit
from python_tool import MAX_ITERS, SYSTEM_PROMPT, execute_python_code

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="No person is asked in training.")


class MathAgentWorkflow(Workflow):
    name: str = "math_agent_agentscope2"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        agent = Agent(
            name="math_react_agent",
            system_prompt=SYSTEM_PROMPT,
            model=tuner,  # or tuner.as_agentscope_model(agent_name=…)
            toolkit=Toolkit([FunctionTool(execute_python_code, permission=ALLOWED)]),
            react_config=ReActConfig(max_iters=MAX_ITERS),
            injection_config=InjectionConfig(inject_runtime_state=False),  # else prompts contain the time of day
        )
        reply = await agent.reply(UserMsg("user", workflow_task.task.main_query))
        return WorkflowOutput(metadata={"final_answer": reply.get_text_content() or ""})
