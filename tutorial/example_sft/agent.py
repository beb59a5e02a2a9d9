"""The agent: a tool that knows the prices, and two turns. The reward: 1 for the right answer, 0 for anything else."""

import json

from shop import SYSTEM, TOOL, answer

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

TURNS = 2


class Shopper(Workflow):
    name: str = "shopper"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client, task = tuner.as_raw_openai_sdk_client(), workflow_task.task
        messages = [SYSTEM, {"role": "user", "content": task.main_query}]
        asked = 0
        for _ in range(TURNS):
            reply = await client.chat.completions.create(model="tuned", messages=messages, tools=[TOOL])
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            asked += 1
            for call in message.tool_calls:
                with tuner.tool(call.function.name, call.function.arguments, call_id=call.id) as used:
                    used.result = look_up(call.function.arguments, task.metadata["item"], task.metadata["price"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": used.result})
        right = (message.content or "").strip() == answer(task.metadata["price"])
        return WorkflowOutput(reward=float(right), is_success=right, log_metrics={"asked": asked})


def look_up(arguments: str, item: str, price: int) -> str:
    """What the tool says."""
    try:
        return str(price) if json.loads(arguments)["item"] == item else "not asked for"
    except (ValueError, KeyError, TypeError):
        return 'arguments must be {"item": NAME}'
