"""A LangChain agent with a tool. Needs langchain and langchain-openai."""

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

SYSTEM = "Solve the problem. Put the final answer in \\boxed{}, as in 3 + 4 = \\boxed{7}."


@tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


class Adder(Workflow):
    """Plays one attempt at one task."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        """Run your unchanged agent. Only the model comes from the tuner."""
        at = tuner.as_oai_baseurl_apikey()
        model = ChatOpenAI(base_url=at.base_url, api_key=at.api_key, model=at.model)
        agent = create_agent(model, [add], system_prompt=SYSTEM)
        result = await agent.ainvoke({"messages": [("user", workflow_task.task.main_query)]}, {"recursion_limit": 8})
        return WorkflowOutput(metadata={"final_answer": str(result["messages"][-1].content)})
