"""Wordle with thirty words: tasks, agent, reward, and the demonstrations that teach words and form.

python wordle.py > wordle.jsonl
"""

import json
import random
import re

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask

LISTED = (
    "apple bread brick chair cloud dance drink eagle earth flame ghost grape horse house knife lemon light money mouse "
    "night ocean paint queen river snake stone sugar table tiger train"
)
WORDS = LISTED.split()
SYSTEM = {"role": "system", "content": "Wordle. 6 guesses, each in [ ]."}
START = {"role": "user", "content": "Guess."}
GUESSES = 6
CLEVER = 0.4
"""Share of the demonstrated guesses that fit the feedback so far. The others are words not guessed before."""
SIZES = {"demonstrations": 6400, "train": 1024}
Turn = tuple[str, str]
"""A guess and its feedback."""


class Games:
    """A task reader: each word is the secret of one held-out game."""

    def __init__(self, config: object) -> None:
        pass

    def tasks(self, split: str) -> list[Task]:
        draw = random.Random("wordle")
        secrets = WORDS if split == "validation" else draw.choices(WORDS, k=SIZES["train"])
        return [
            Task(task_id=f"{split}-{number}", main_query="Guess.", metadata={"secret": secret})
            for number, secret in enumerate(secrets)
        ]


class Player(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        secret = workflow_task.task.metadata["secret"]
        client = tuner.as_raw_openai_sdk_client()
        messages, turns = [SYSTEM, START], list[Turn]()
        while len(turns) < GUESSES and not is_won(turns):
            reply = await client.chat.completions.create(model="tuned", messages=messages)
            content = reply.choices[0].message.content or ""
            guess = read_guess(content, turns)
            if guess is None:  # an invalid or repeated guess loses at once
                break
            turns.append((guess, mark_letters(guess, secret)))
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": show_turn(turns[-1])}]
        metrics = {"guesses": len(turns), "invalid": len(turns) < GUESSES and not is_won(turns)}
        return WorkflowOutput(reward=score_game(turns), is_success=is_won(turns), log_metrics=metrics)


def read_guess(reply: str, turns: list[Turn]) -> str | None:
    """Return the first bracketed word, or None if it is not in the list or was guessed before."""
    found = re.search(r"\[(\w+)\]", reply)
    word = found[1].lower() if found else ""
    return word if word in WORDS and all(word != guess for guess, _ in turns) else None


def mark_letters(guess: str, secret: str) -> str:
    """Return G, Y or X for each letter: greens first, then yellows from left to right, each letter used once."""
    marks = ["G" if letter == right else "X" for letter, right in zip(guess, secret, strict=True)]
    left = [right for right, mark in zip(secret, marks, strict=True) if mark != "G"]
    for place, letter in enumerate(guess):
        if marks[place] == "X" and letter in left:
            marks[place] = "Y"
            left.remove(letter)
    return "".join(marks)


def show_turn(turn: Turn) -> str:
    """Return the letters of a guess, and their marks below."""
    return "\n".join(" ".join(line) for line in (turn[0].upper(), turn[1]))


def is_won(turns: list[Turn]) -> bool:
    return bool(turns) and turns[-1][1] == "GGGGG"


def score_game(turns: list[Turn]) -> float:
    """Return 1 for a win, else the share of the best guess, a yellow letter for half: TextArena's reward."""
    return max(((marks.count("G") + marks.count("Y") / 2) / 5 for _, marks in turns), default=0.0)


def build_demonstration(draw: random.Random) -> dict[str, list[dict[str, str]]]:
    secret, turns = draw.choice(WORDS), list[Turn]()
    messages = [SYSTEM, START]
    while len(turns) < GUESSES and not is_won(turns):
        fresh = [word for word in WORDS if all(word != guess for guess, _ in turns)]
        fitting = [word for word in fresh if all(mark_letters(guess, word) == marks for guess, marks in turns)]
        guess = draw.choice(fitting if draw.random() < CLEVER else fresh)
        messages.append({"role": "assistant", "content": f"[{guess}]"})
        turns.append((guess, mark_letters(guess, secret)))
        messages.append({"role": "user", "content": show_turn(turns[-1])})
    return {"messages": messages[:-1]}


if __name__ == "__main__":
    draw = random.Random("demonstrations")
    for _ in range(SIZES["demonstrations"]):
        print(json.dumps(build_demonstration(draw)))
