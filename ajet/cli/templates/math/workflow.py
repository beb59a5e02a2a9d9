"""Tasks, agent and reward, in one file: sums of two numbers, answered in a box."""

import random
import re

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask

# One worked example: without it this small model never writes a box, and a constant reward of 0 teaches nothing.
EXAMPLE = [
    {"role": "system", "content": "Solve the problem. Put the final answer in \\boxed{}."},
    {"role": "user", "content": "What is 3 + 4?"},
    {"role": "assistant", "content": "3 + 4 = \\boxed{7}"},
]
HELD_OUT = 32  # problems excluded from training


class Sums:
    """Where the tasks come from: any class with `tasks(split)`."""

    def __init__(self, config):
        problems = [(a, b) for a in range(1, 21) for b in range(1, 21)]
        random.Random(0).shuffle(problems)  # equal for all seeds of a run, to compare runs
        held_out = problems[:HELD_OUT]
        held_out_pairs = {frozenset(each) for each in held_out}  # 4 + 9 is 9 + 4: neither is trained on
        others = [each for each in problems[HELD_OUT:] if frozenset(each) not in held_out_pairs]
        self.problems = {"validation": held_out, "train": others}

    def tasks(self, split):
        return [
            Task(task_id=f"{a}+{b}", main_query=f"What is {a} + {b}?", metadata={"answer": a + b})
            for a, b in self.problems[split]
        ]


class AdditionAgent(Workflow):
    """The agent: put your own agent into `execute`, and use the tuner's client instead of your model's."""

    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        task = workflow_task.task
        client = tuner.as_raw_openai_sdk_client()  # an openai.AsyncOpenAI
        question = {"role": "user", "content": task.main_query}
        reply = await client.chat.completions.create(model="tuned", messages=[*EXAMPLE, question])
        text = reply.choices[0].message.content or ""

        # The reward: 1 for the right number in the box, 0 for anything else. (Half a point for any box would teach the
        # model to print empty boxes.) Without `reward`, `task_judge.judge_protocol` decides instead.
        box = re.search(r"\\boxed\{([^}]*)\}", text)
        right = box is not None and box.group(1).strip() == str(task.metadata["answer"])
        return WorkflowOutput(reward=float(right), is_success=right, metadata={"final_answer": text})
