"""Reverse a short text character by character: tasks, agent, reward, and the demonstrations that warm a model up.

python reverse_text.py > reverse_text.jsonl
"""

import json
import random
import re
from difflib import SequenceMatcher

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask

SYSTEM = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
TAG = re.compile(r"<reversed_text>(.*?)</reversed_text>", re.DOTALL)
SIZES = {"demonstrations": 128, "train": 512, "validation": 64}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"


def draw_texts() -> dict[str, list[str]]:
    """Draw codes such as `k7q2`, each once. A letter beside a digit is a token of its own."""
    draw, seen = random.Random("reverse-text"), set()
    texts: dict[str, list[str]] = {}
    for split, size in SIZES.items():
        texts[split] = []
        while len(texts[split]) < size:
            kinds = draw.sample([LETTERS, DIGITS], 2)
            text = "".join(draw.choice(kinds[place % 2]) for place in range(draw.randint(3, 5)))
            if text not in seen:
                seen.add(text)
                texts[split].append(text)
    return texts


class Texts:
    """A task reader."""

    def __init__(self, config: object) -> None:
        pass

    def tasks(self, split: str) -> list[Task]:
        return [Task(task_id=f"{split}-{text}", main_query=text) for text in draw_texts()[split]]


class Reverser(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        text = workflow_task.task.main_query
        client = tuner.as_raw_openai_sdk_client()
        reply = await client.chat.completions.create(model="tuned", messages=build_prompt(text))
        reward = score_reply(reply.choices[0].message.content or "", text)
        return WorkflowOutput(reward=reward, is_success=reward == 1)


def build_prompt(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def score_reply(reply: str, text: str) -> float:
    """Return the similarity of the tagged answer and the reversed text, as verifiers' `reverse-text` measures it."""
    found = TAG.search(reply)
    return SequenceMatcher(None, found[1].strip() if found else "", text[::-1]).ratio()


if __name__ == "__main__":
    for text in draw_texts()["demonstrations"]:
        answer = {"role": "assistant", "content": f"<reversed_text>{text[::-1]}</reversed_text>"}
        print(json.dumps({"messages": [*build_prompt(text), answer]}))
