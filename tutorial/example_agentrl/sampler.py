"""A sampler of one's own: plays a task with one tool. Who judges stands in the task file: the scorer of its row."""

import json

from ajet import AsyncSampler

SYSTEM = {"role": "system", "content": "You know no prices. Look them up, then answer in \\boxed{}."}
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}


class Shopper(AsyncSampler):
    """With `async def evaluate_record(self, record)` it would give the score itself; None is no score."""

    async def run(self, task, tuner):
        client = tuner.as_raw_openai_sdk_client()
        messages = [SYSTEM, {"role": "user", "content": task.main_query}]
        text = ""
        for _ in range(tuner.config.ajet.rollout.multi_turn.max_steps):
            reply = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
            message = reply.choices[0].message
            text = message.content or ""
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                with tuner.tool(call.function.name, call.function.arguments, call_id=call.id) as used:
                    used.result = price(task.metadata["prices"], call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": used.result})
        return text


def price(prices, arguments):
    try:
        return str(prices[json.loads(arguments)["item"]])
    except (ValueError, KeyError, TypeError):
        return 'arguments must be {"item": NAME}'
