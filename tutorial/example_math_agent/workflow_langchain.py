"""The same agent with LangChain's chat model: any LangChain agent takes `model` in the same way."""

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from python_tool import MAX_ITERS, SYSTEM_PROMPT
from python_tool import execute_python_code as run_python

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


@tool
async def execute_python_code(code: str) -> str:
    """Execute the Python code and get what it prints."""
    return await run_python(code)


class MathAgentWorkflow(Workflow):
    name: str = "math_agent_langchain"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        endpoint = tuner.as_oai_baseurl_apikey()
        model = ChatOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.api_key, model=endpoint.model, max_retries=0, timeout=None
        ).bind_tools([execute_python_code])
        messages = [SystemMessage(SYSTEM_PROMPT), HumanMessage(workflow_task.task.main_query)]
        for turn in range(MAX_ITERS + 1):
            reply = await model.ainvoke(messages)
            if not reply.tool_calls or turn == MAX_ITERS:
                break
            messages.append(reply)
            messages += [await execute_python_code.ainvoke(call) for call in reply.tool_calls]
        return WorkflowOutput(metadata={"final_answer": reply.content})
