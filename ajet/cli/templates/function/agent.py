"""Agent and reward as plain functions.

From Python, `ajet.tune(agent=agent, reward=reward, tasks="train.jsonl")` trains them, too.
"""

import re

# One worked example: without it this small model never writes a box, and a constant reward of 0 teaches nothing.
EXAMPLE = [
    {"role": "system", "content": "Solve the problem. Put the final answer in \\boxed{}."},
    {"role": "user", "content": "What is 3 + 4?"},
    {"role": "assistant", "content": "3 + 4 = \\boxed{7}"},
]


async def agent(task, tuner):
    """Play one attempt at one task, and return the answer for the reward."""
    client = tuner.as_raw_openai_sdk_client()  # an openai.AsyncOpenAI; its model is the one being trained
    reply = await client.chat.completions.create(messages=[*EXAMPLE, {"role": "user", "content": task.main_query}])
    return reply.choices[0].message.content or ""


def reward(task, output):
    """Return (reward, success): 1 for the right number in the box, 0 for anything else."""
    box = re.search(r"\\boxed\{([^}]*)\}", output.metadata["final_answer"])
    good = box is not None and box.group(1).strip() == task.metadata["answer"]
    return float(good), good
