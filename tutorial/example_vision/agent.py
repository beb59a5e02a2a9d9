"""An agent that shows two squares and asks for their colours, in one conversation: half a point for each."""

import random

from colours import COLOURS, FIRST, SECOND, data_url, question, square

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask


class Squares:
    """Tasks: pairs of colours, and the seed of their shades."""

    def __init__(self, config) -> None:
        names = list(COLOURS)
        self._pairs = [(first, second) for first in names for second in names]

    def tasks(self, split: str) -> list[Task]:
        shades = range(4) if split == "train" else (4,)
        return [
            Task(task_id=f"{first} {second} {shade}", metadata={"colours": [first, second], "shade": shade})
            for shade in shades
            for first, second in self._pairs
        ]


class Namer(Workflow):
    name: str = "namer"

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        about = workflow_task.task.metadata
        noise = random.Random(f"{workflow_task.task.task_id}")
        messages, right = [], 0
        for colour, text in zip(about["colours"], (FIRST, SECOND), strict=True):
            messages.append(question(data_url(square(colour, noise=noise)), text))
            reply = await client.chat.completions.create(model="tuned", messages=messages)
            said = reply.choices[0].message.content
            messages.append({"role": "assistant", "content": said})
            right += said.strip() == colour
        return WorkflowOutput(reward=right / 2, is_success=right == 2)
