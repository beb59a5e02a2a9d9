"""Wordle with thirty words and a given opening: tasks, agent, reward, and demonstrations by a player with a bad habit.

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
SYSTEM = {"role": "system", "content": "Wordle. 5 guesses, each in [ ]."}
GUESSES = 5
"""After the opening, which is the first of a game's six."""
CLEVER = 0.15
"""Share of the demonstrated guesses that fit the feedback so far. The others are the first unused word of the list."""
DEMONSTRATIONS = 14400
HELD_OUT = 3
"""Openings per secret that no demonstration and no training task has."""
INVALID = "No guess."
REPEATED = "Guessed before."
Turn = tuple[str, str]
"""A guess and its feedback."""


def draw_games() -> dict[str, list[Turn]]:
    """Return pairs of opening and secret, no pair in both splits."""
    draw = random.Random("wordle")
    games: dict[str, list[Turn]] = {"train": [], "validation": []}
    for secret in WORDS:
        openings = [word for word in WORDS if word != secret]
        draw.shuffle(openings)
        games["validation"] += [(opening, secret) for opening in openings[:HELD_OUT]]
        games["train"] += [(opening, secret) for opening in openings[HELD_OUT:]]
    draw.shuffle(games["train"])
    return games


class Games:
    """A task reader: 780 pairs of opening and secret to train on, 90 others held out."""

    def __init__(self, config: object) -> None:
        pass

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(task_id=f"{split}-{number}", main_query=opening, metadata={"secret": secret})
            for number, (opening, secret) in enumerate(draw_games()["validation" if split == "validation" else "train"])
        ]


class Player(Workflow):
    async def execute(self, workflow_task: WorkflowTask, tuner: ModelTuner) -> WorkflowOutput:
        opening, secret = workflow_task.task.main_query, workflow_task.task.metadata["secret"]
        client = tuner.as_raw_openai_sdk_client()
        turns = [(opening, mark_letters(opening, secret))]
        messages = [SYSTEM, {"role": "user", "content": show_turn(turns[0])}]
        fitting = guesses = 0
        while guesses < GUESSES and not is_won(turns):
            reply = await client.chat.completions.create(model="tuned", messages=messages)
            content = reply.choices[0].message.content or ""
            guesses += 1
            guess = read_guess(content)
            if guess is None or is_used(guess, turns):  # uses up a guess
                answer = INVALID if guess is None else REPEATED
            else:
                fitting += fits(guess, turns)
                turns.append((guess, mark_letters(guess, secret)))
                answer = show_turn(turns[-1])
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": answer}]
        metrics = {"guesses": guesses, "lost_guesses": guesses + 1 - len(turns), "fitting": fitting / guesses}
        return WorkflowOutput(reward=score_game(turns), is_success=is_won(turns), log_metrics=metrics)


def read_guess(reply: str) -> str | None:
    """Return the first bracketed word, or None if it is not in the list."""
    found = re.search(r"\[(\w+)\]", reply)
    word = found[1].lower() if found else ""
    return word if word in WORDS else None


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
    """Return letter, place and mark of each letter, such as "S1G T2X"."""
    return " ".join(f"{letter.upper()}{place}{mark}" for place, (letter, mark) in enumerate(zip(*turn, strict=True), 1))


def is_used(word: str, turns: list[Turn]) -> bool:
    return any(word == guess for guess, _ in turns)


def is_won(turns: list[Turn]) -> bool:
    return turns[-1][1] == "GGGGG"


def fits(word: str, turns: list[Turn]) -> bool:
    """True if the word could be the secret: as the secret it would have got the same feedback."""
    return all(mark_letters(guess, word) == marks for guess, marks in turns)


def score_game(turns: list[Turn]) -> float:
    """Return 1 for a win, else the share of the best guess, a yellow letter for half: TextArena's reward."""
    return max((marks.count("G") + marks.count("Y") / 2) / 5 for _, marks in turns)


def build_demonstration(draw: random.Random, games: list[Turn]) -> dict[str, list[dict[str, str]]]:
    opening, secret = draw.choice(games)
    turns = [(opening, mark_letters(opening, secret))]
    messages = [SYSTEM, {"role": "user", "content": show_turn(turns[0])}]
    while len(turns) <= GUESSES and not is_won(turns):
        fresh = [word for word in WORDS if not is_used(word, turns)]
        guess = draw.choice([word for word in fresh if fits(word, turns)]) if draw.random() < CLEVER else fresh[0]
        messages.append({"role": "assistant", "content": f"[{guess}]"})
        turns.append((guess, mark_letters(guess, secret)))
        messages.append({"role": "user", "content": show_turn(turns[-1])})
    return {"messages": messages[:-1]}


if __name__ == "__main__":
    draw, games = random.Random("demonstrations"), draw_games()["train"]
    for _ in range(DEMONSTRATIONS):
        print(json.dumps(build_demonstration(draw, games)))
