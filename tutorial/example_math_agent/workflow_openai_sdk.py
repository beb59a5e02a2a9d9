"""The same agent as a loop around OpenAI's SDK."""

from python_tool import MAX_ITERS, SYSTEM_PROMPT, TOOL, call_tool

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class MathAgentWorkflow(Workflow):
    name: str = "math_agent_openai_sdk"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()  # an openai.AsyncOpenAI
        messages = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": workflow_task.task.main_query},
        ]
        for turn in range(MAX_ITERS + 1):
            reply = await client.chat.completions.create(model="tuned", messages=messages, tools=[TOOL])
            message = reply.choices[0].message
            if not message.tool_calls or turn == MAX_ITERS:
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = await call_tool(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return WorkflowOutput(metadata={"final_answer": message.content})
