"""Sort names over two turns: tasks, agent, reward, and the demonstrations that teach the form of an answer.

python alphabet_sort.py > alphabet_sort.jsonl
"""

import json
import random
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import pairwise

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask

SYSTEM = {"role": "system", "content": "Sort by FIRST name."}
TAGS = ("alphabetical_sorted", "combined_alphabetical_sorted")
POWER = 8
RIGHT = 0.5
"""Share of demonstrations in order. The others repeat the names as given."""
NAMES = {
    "train": (
        "Abe Amy Bea Bob Cal Cy Dan Dee Eli Eva Fay Flo Gil Guy Hal Hy Ian Ivy Jan Joe Kay Ken Lee Liv Max Meg Ned Nia "
        "Oda Ora Pam Pip Quin Ray Roy Sal Sue Ted Tia Uma Una Val Vic Wes Will Xan Xia Yan Yul Zed Zoe"
    ),
    "validation": (
        "Ada Al Ben Bo Cat Cleo Don Dot Ed Ella Finn Fred Gus Gwen Hank Hope Ike Isa Jim Jo Kim Kit Lou Lyn Mae Mo Nan "
        "Nell Otto Ott Pat Peg Que Rex Rob Sam Sid Tim Tom Ugo Uri Van Vera Walt Win Xav Xena Yves Yma Zac Zora"
    ),
}
LAST = "Bell Cook Dale Fox Gray Hill Hunt King Lake Lane Moss Pike Reed Rice Snow Wood".split()  # noqa: SIM905
SIZES = {"demonstrations": 3600, "train": 1024, "validation": 64}
Turns = list[list[str]]
"""The names that each turn adds."""


def draw_turns(split: str) -> Iterator[Turns]:
    """Draw two turns of one or two names each."""
    draw = random.Random(f"alphabet-sort {split}")
    names = NAMES["validation" if split == "validation" else "train"].split()
    for _ in range(SIZES[split]):
        sizes = [draw.randint(1, 2) for _ in TAGS]
        drawn = iter(first + draw.choice(LAST) for first in draw.sample(names, sum(sizes)))
        yield [[next(drawn) for _ in range(size)] for size in sizes]


class Lists:
    """A task reader."""

    def __init__(self, config: object) -> None:
        pass

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(task_id=f"{split}-{number}", main_query=build_request(turns, 0), metadata={"turns": turns})
            for number, turns in enumerate(draw_turns(split))
        ]


class Sorter(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        turns = workflow_task.task.metadata["turns"]
        client = tuner.as_raw_openai_sdk_client()
        messages, replies = [SYSTEM], []
        for number in range(len(turns)):
            messages.append({"role": "user", "content": build_request(turns, number)})
            reply = await client.chat.completions.create(model="tuned", messages=messages)
            replies.append(reply.choices[0].message.content or "")
            messages.append({"role": "assistant", "content": replies[-1]})
        reward = score_replies(replies, turns)
        return WorkflowOutput(reward=reward, is_success=reward == 1)


def build_request(turns: Turns, number: int) -> str:
    return f"{'Now sort ALL, mark the NEW' if number else 'Sort'}: {', '.join(turns[number])}"


def build_answer(turns: Turns, number: int, *, in_order: bool = True) -> str:
    """Return the list of all names up to a turn, the new ones marked from the second turn on."""
    names = [name for turn in turns[: number + 1] for name in turn]
    mark = " // new name!" if number else ""
    lines = [name + (mark if name in turns[number] else "") for name in (sorted(names) if in_order else names)]
    return "\n".join([f"<{TAGS[number]}>", *lines, f"</{TAGS[number]}>"])


def score_replies(replies: list[str], turns: Turns) -> float:
    """Return the mean similarity of the turns' lists, to the power 8, as verifiers' `alphabet-sort` measures it."""
    scores = []
    for number, reply in enumerate(replies):
        expected = read_list(build_answer(turns, number), TAGS[number])[0]
        attempts = [SequenceMatcher(None, found, expected).ratio() for found in read_list(reply, TAGS[number])]
        improved = all(later > earlier for earlier, later in pairwise(attempts))
        scores.append(attempts[-1] if attempts and improved else 0.0)
    return (sum(scores) / len(turns)) ** POWER


def read_list(reply: str, tag: str) -> list[str]:
    """Return each tagged list of a reply, in lower case and without blank lines."""
    found = re.findall(f"<{tag}>(.*?)</{tag}>", reply, re.DOTALL)
    return ["\n".join(line.strip().lower() for line in each.split("\n") if line.strip()) for each in found]


def build_demonstration(turns: Turns, *, in_order: bool) -> dict[str, list[dict[str, str]]]:
    messages = [SYSTEM]
    for number in range(len(turns)):
        messages.append({"role": "user", "content": build_request(turns, number)})
        messages.append({"role": "assistant", "content": build_answer(turns, number, in_order=in_order)})
    return {"messages": messages}


if __name__ == "__main__":
    draw = random.Random("order")
    for turns in draw_turns("demonstrations"):
        print(json.dumps(build_demonstration(turns, in_order=draw.random() < RIGHT)))
