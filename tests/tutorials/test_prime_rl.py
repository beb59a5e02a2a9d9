"""prime-rl's basic examples: rewards as in verifiers and TextArena, splits that share nothing, and learning."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from tests.docs.snippets import ROOT
from tests.support.ajet_process import environment
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_prime_rl"
TURNS = [["ZoeBell"], ["AmyFox"]]
FIRST = "<alphabetical_sorted>\nZoeBell\n</alphabetical_sorted>"
SECOND = "<combined_alphabetical_sorted>\n{}\n</combined_alphabetical_sorted>"
SORTED = SECOND.format("AmyFox // new name!\nZoeBell")


def of(reference: str) -> Any:
    return resolve_reference(reference, base=FOLDER)


def play(workflow: str, task: Task, *script: str) -> WorkflowOutput:
    with scene(*script) as played:
        output: WorkflowOutput = asyncio.run(of(workflow)().execute(WorkflowTask(task=task), played.tuner))
    return output


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("<reversed_text>2q7</reversed_text>", 1.0),
        ("Here: <reversed_text> 2q7 </reversed_text> done", 1.0),
        ("<reversed_text>7q2</reversed_text>", 1 / 3),
        ("2q7", 0.0),
        ("<reversed_text>2q7", 0.0),
    ],
)
def test_reversed_text_is_scored_by_similarity(reply: str, reward: float) -> None:
    output = play("reverse_text.py->Reverser", Task(task_id="t", main_query="7q2"), reply)
    assert output.reward == pytest.approx(reward) and output.is_success is (reward == 1)


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ([FIRST, SORTED], 1.0),
        ([FIRST.upper().replace("ALPHABETICAL_SORTED", "alphabetical_sorted"), SORTED], 1.0),
        ([FIRST, SORTED + SORTED], 0.5**8),
        ([FIRST, SECOND.format("ZoeBell") + SORTED], 1.0),
        ([FIRST, "AmyFox // new name!\nZoeBell"], 0.5**8),
    ],
)
def test_sorted_names_are_scored_over_turns(replies: list[str], reward: float) -> None:
    output = play("alphabet_sort.py->Sorter", Task(task_id="t", main_query="", metadata={"turns": TURNS}), *replies)
    assert output.reward == pytest.approx(reward) and output.is_success is (reward == 1)


def test_names_in_order_of_arrival_score_less() -> None:
    unsorted = SECOND.format("ZoeBell\nAmyFox // new name!")
    assert 0 < of("alphabet_sort.py->score_replies")([FIRST, unsorted], TURNS) < 0.3


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("stone", "stone", "GGGGG"),
        ("eagle", "apple", "XYXGG"),
        ("apple", "eagle", "YXXGG"),
        ("queen", "eagle", "XXYYX"),
    ],
)
def test_wordle_marks_each_letter_once(guess: str, secret: str, marks: str) -> None:
    assert of("wordle.py->mark_letters")(guess, secret) == marks


@pytest.mark.parametrize(
    ("script", "reward", "guesses", "lost"),
    [
        (["[table]", "I try [stone]."], 1.0, 2, 0),
        (["[snake]", "[snake]", "[zzzzz]", "stone", "[light]"], 0.5, 5, 3),
        (["[apple]", "[stone]"], 1.0, 2, 1),
        (["[light]", "[money]", "[drink]", "[paint]", "[ocean]"], 0.3, 5, 0),
    ],
)
def test_a_game_of_wordle_is_scored(script: list[str], reward: float, guesses: int, lost: int) -> None:
    task = Task(task_id="t", main_query="apple", metadata={"secret": "stone"})
    output = play("wordle.py->Player", task, *script)
    assert (output.reward, output.is_success) == (reward, reward == 1)
    assert (output.log_metrics["guesses"], output.log_metrics["lost_guesses"]) == (guesses, lost)


def test_held_out_texts_and_names_are_new() -> None:
    texts = of("reverse_text.py->draw_texts")()
    assert len({text for split in texts.values() for text in split}) == sum(map(len, texts.values()))
    names = of("alphabet_sort.py->NAMES")
    assert set(names["train"].split()).isdisjoint(names["validation"].split())


def test_held_out_games_of_wordle_are_new() -> None:
    games = of("wordle.py->draw_games")()
    train, validation = (set(games[split]) for split in ("train", "validation"))
    assert train.isdisjoint(validation) and (len(train), len(validation)) == (780, 90)
    assert {secret for _, secret in train} == {secret for _, secret in validation} == set(of("wordle.py->WORDS"))


def test_demonstrations_are_games_by_the_rules() -> None:
    draw, games = random.Random(0), of("wordle.py->draw_games")()["train"]
    for _ in range(50):
        messages = of("wordle.py->build_demonstration")(draw, games)["messages"]
        guesses = [message["content"] for message in messages if message["role"] == "assistant"]
        assert 1 <= len(guesses) == len(set(guesses)) <= 5 and messages[-1]["role"] == "assistant"


def test_words_and_marks_of_wordle_are_single_tokens(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    subprocess.run([sys.executable, str(FOLDER / "make_model.py"), str(tmp_path)], check=True, timeout=120,
                   env=environment(PYTHONPATH=str(ROOT)))  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    marks = of("wordle.py->show_turn")(("train", "XGYXX"))
    assert tokenizer.tokenize("[stone]") == ["[", "stone", "]"] and len(tokenizer.tokenize(marks)) == 5


@pytest.mark.parametrize("name", ["reverse_text", "alphabet_sort", "wordle"])
def test_each_example_is_ready_to_run(name: str) -> None:
    for yaml in (FOLDER / f"{name}_sft.yaml", FOLDER / f"{name}.yaml"):
        load_experiment(yaml).require_ready()


@pytest.mark.extra_slow
def test_rewards_teach_to_reverse_a_text(tmp_path: Path) -> None:
    prints(FOLDER / "reverse_text.py", tmp_path / "reverse_text.jsonl")
    model = taught(FOLDER / "reverse_text_sft.yaml", tmp_path)
    more = "trainer_common.total_training_steps=12"  # the page's five are few for a test
    held_out, _ = learned(FOLDER / "reverse_text.yaml", tmp_path, "reverse_text", model, more)
    assert held_out[0] > 0.6 and held_out[-1] >= 0.8, held_out


@pytest.mark.extra_slow
def test_rewards_teach_to_use_feedback_in_wordle(tmp_path: Path) -> None:
    prints(FOLDER / "wordle.py", tmp_path / "wordle.jsonl")
    made = [sys.executable, str(FOLDER / "make_model.py"), str(tmp_path / "guesser")]
    subprocess.run(made, check=True, timeout=120, env=environment(PYTHONPATH=str(ROOT)))
    model = taught(FOLDER / "wordle_sft.yaml", tmp_path)
    held_out, _ = learned(FOLDER / "wordle.yaml", tmp_path, "wordle", model)
    assert held_out[0] < 0.75 and held_out[-1] >= 0.85, held_out
