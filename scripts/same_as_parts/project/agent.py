"""Tasks and agents of `scripts/same_as`: a price that only a tool knows, and a reward with several values."""

import asyncio
import json
import os
import random
import re
import signal
from pathlib import Path

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask

HERE = Path(__file__).parent
METRICS = HERE / "launcher_record" / "same" / "metrics.jsonl"
ITEMS = ("eel", "fig", "ham", "jam", "nut", "oat", "pea", "yam")
SYSTEM = {"role": "system", "content": "You know no prices. Look them up, then answer in \\boxed{}."}
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of an item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}


class Prices:
    def __init__(self, config):
        self.seed = config.ajet.seed

    def tasks(self, split):
        draw = random.Random(f"{self.seed}/{split}")
        count = {"train": 64, "validation": 4}[split]
        return [
            Task(
                task_id=f"{split}-{number}",
                main_query=f"What does the {draw.choice(ITEMS)} cost?",
                metadata={"price": draw.randint(10, 99)},
            )
            for number in range(count)
        ]


class PriceAgent(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        client = tuner.as_raw_openai_sdk_client()
        price = str(workflow_task.task.metadata["price"])
        messages = [SYSTEM, {"role": "user", "content": workflow_task.task.main_query}]
        text, calls = "", 0
        for _ in range(3):
            reply = await client.chat.completions.create(model="tuned", messages=messages, tools=[TOOL])
            message, calls = reply.choices[0].message, calls + 1
            text = message.content or ""
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": known(price, call)})
        box = re.search(r"\\boxed\{([^}]*)\}", text)
        given = box.group(1).strip() if box else ""
        near = sum(one == other for one, other in zip(given, price, strict=False)) / len(price)
        reward = 1.0 if given == price else near / 2 + (0.1 if box else 0.0)
        return WorkflowOutput(
            reward=reward,
            is_success=given == price,
            metadata={"final_answer": text},
            log_metrics={"model_calls": calls},
        )


class CallRewardAgent(PriceAgent):
    """Gives each model call a reward of its own."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        output = await super().execute(workflow_task, tuner)
        calls = output.log_metrics["model_calls"]
        output.reward = [0.3] * (calls - 1) + [output.reward]
        return output


class KilledAgent(PriceAgent):
    """Kills the training, once, as the first attempt of step 3 begins."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        if workflow_task.step == 3 and not (HERE / "killed").exists():
            (HERE / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().execute(workflow_task, tuner)


class HeldAgent(PriceAgent):
    """Ends no attempt before the file `released` is there, and leaves a file for each that ended."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        (HERE / "begun").touch()
        while not (HERE / "released").exists():
            await asyncio.sleep(0.05)
        output = await super().execute(workflow_task, tuner)
        (HERE / f"ended-{workflow_task.episode_uuid}").touch()
        return output


class TurnAgent(PriceAgent):
    """Asks the model one attempt after the other, and ends a batch's attempts once the next batch's are played.

    So each batch but the first is sampled while the trainer lacks the batch before it: one step ahead.
    """

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        rollout = tuner.config.ajet.rollout
        repeats, batch = rollout.num_repeat, tuner.config.ajet.data.train_batch_size * rollout.num_repeat
        number = int(workflow_task.task_id.rpartition("-")[2])  # its position, since tasks are not shuffled
        turn = number * repeats + workflow_task.task_thread_index
        while len(list(HERE.glob("played-*"))) < turn:
            await asyncio.sleep(0.02)
        output = await super().execute(workflow_task, tuner)
        output.reward += 0.5 * workflow_task.task_thread_index  # attempts differ, so that each step learns
        (HERE / f"played-{turn}").touch()
        next_batch = turn // batch + 1
        if next_batch < tuner.config.ajet.trainer_common.total_training_steps:
            while len(list(HERE.glob("played-*"))) < (next_batch + 1) * batch:
                await asyncio.sleep(0.02)
        else:  # the trainer takes groups as they close: the batch before must be trained first
            while len(METRICS.read_text().splitlines()) < next_batch - 1:
                await asyncio.sleep(0.02)
        return output


def known(price, call):
    try:
        json.loads(call.function.arguments)["item"]
    except (ValueError, KeyError, TypeError):
        return 'arguments must be {"item": NAME}'
    return price
