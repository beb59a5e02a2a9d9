"""The checks fire on loops, leaked template tokens and broken tool calls, and on nothing that is merely unusual."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet.rollout.checks import find_loop, find_nonsense, find_wrong_toolcall, open_checks
from ajet.schema.call import Call
from ajet.schema.errors import ConfigError
from tests.support.cost_of_text import cost


def says(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


TABLE = "| n | square |\n|---|---|\n" + "".join(f"| {n} | {n * n} |\n" for n in range(60))
HONEST = {
    "mathematics": "π ≤ √10, so ∑ 1/n² → π²/6 ≈ 1.6449; ∀ε>0 ∃δ>0. " * 3,
    "cyrillic": "Сумма двух чисел равна сорока двум. Ответ: 42.",
    "chinese": "答案是四十二。因为六乘以七等于四十二，所以最后的答案是四十二。",
    "binary": "0 1 " * 100,
    "table": TABLE,
    "truth table": "| A | B | A ∧ B |\n|---|---|---|\n" + "| 1 | 0 | 0 |\n" * 8,
    "dashes": "-" * 200 + "\nResult\n" + "-" * 200,
    "spaces": "x" + " " * 1500 + "y",
    "dots": "Chapter 1 " + "." * 300 + " 12",
    "laughter": "ha" * 30,
    "code": "for i in range(3):\n    print(i)\n" * 6 + "</div>" * 20,
    "zeros": "0" * 1500,
    "list": "\n".join(f"{n}. item number {n} of the list" for n in range(200)),
    "short": "ok",
    "empty": "",
}


@pytest.mark.parametrize("text", HONEST.values(), ids=HONEST.keys())
def test_honest_text_passes(text: str) -> None:
    assert find_nonsense(says(text)) == []


LOOPS = {
    "word": "the " * 100,
    "sentence": "First some sense. " + "I think the answer is 42. " * 40,
    "long piece": ("Let me check this once more, from the beginning, to be entirely sure. " * 2 + "So: ") * 12,
    "in the middle": "A start. " + "na" * 300 + " and an end that is longer than the loop itself. " + HONEST["list"],
    "digits for ever": "0 1 " * 1000,
    "one letter": "a" * 400,
    "chinese": "答案是四十二。" * 60,
    "inner repeats": "ha ha ha ha ha ha ha ha ha ha! And again: " * 12,
}


@pytest.mark.parametrize("text", LOOPS.values(), ids=LOOPS.keys())
def test_loops_fire(text: str) -> None:
    assert find_nonsense(says(text)) == ["loop"]


@given(
    piece=st.text(st.characters(categories=["L", "N", "P", "Z"]), min_size=1, max_size=120),
    before=st.text(max_size=400),
    after=st.text(max_size=400),
)
def test_any_loop_that_is_long_enough_is_found(piece: str, before: str, after: str) -> None:
    if not any(character.isalpha() for character in piece):
        return
    times = max(14, 400 // len(piece) + 2)
    assert find_loop(before + piece * times + after) is not None


@given(st.text(st.characters(categories=["L", "N", "P", "Z"]), max_size=290))
def test_short_texts_are_never_loops(text: str) -> None:
    assert find_loop(text) is None


def test_the_cost_is_linear() -> None:
    letters = np.random.default_rng(0).integers(97, 123, 200_000)
    text = "".join(map(chr, letters))
    ruled = (("-" * 1900 + "\n") * 200)[:200_000]
    for one in (text, ruled):
        quarter, whole = (cost(find_loop, one[:size]) for size in (50_000, 200_000))
        assert whole < 8 * quarter + 0.05, "four times the text; a square would be sixteen times the cost"


@pytest.mark.parametrize(
    "token", ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "[INST]", "<end_of_turn>"]
)
def test_template_tokens_in_the_text_fire(token: str) -> None:
    assert find_nonsense(says(f"The answer{token}user")) == ["special_token"]
    assert find_nonsense(says("fine", reasoning_content=f"hm {token}")) == ["special_token"]
    assert find_nonsense(says([{"type": "text", "text": token}])) == ["special_token"]


def test_what_only_resembles_a_template_token_passes() -> None:
    assert find_nonsense(says("a <|> b, F# has <| and |>, <think> is a tag, x<|y|>z")) == []


def calls(*functions: dict[str, Any]) -> dict[str, Any]:
    return says(None, tool_calls=[{"id": "1", "type": "function", "function": function} for function in functions])


def test_good_tool_calls_pass() -> None:
    assert find_wrong_toolcall(says("I call no tool {}.")) == []
    assert (
        find_wrong_toolcall(calls({"name": "add", "arguments": json.dumps({"a": 1})}, {"name": "f", "arguments": "{}"}))
        == []
    )


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1, 2]", '"text"', "", None, "7", "[" * 100_000])
def test_arguments_that_are_no_object_fire(arguments: Any) -> None:
    assert find_wrong_toolcall(calls({"name": "add", "arguments": arguments})) == ["arguments"]


@pytest.mark.parametrize("text", ['<tool_call>{"name": "add"', "</tool_call>", "<function=add>", "<|python_tag|>x"])
def test_leftover_markup_fires(text: str) -> None:
    assert find_wrong_toolcall(says(f"I will. {text}")) == ["leftover"]


def test_a_call_without_a_name_fires() -> None:
    assert find_wrong_toolcall(calls({"name": "", "arguments": "{}"})) == ["name"]


def a_call(trained: bool) -> Call:
    ids, floats = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return Call(0, "a", "a", trained, None, 0, ids, ids, floats, floats, (), "stop", (), None, None)


def test_checks_are_chosen_by_name_and_look_at_what_trains() -> None:
    inspect = open_checks(["nonsense", "wrong_toolcall"])
    assert inspect is not None
    bad = says("the " * 100 + "<tool_call>")
    assert inspect(a_call(True), bad) == ["nonsense:loop", "wrong_toolcall:leftover"]
    assert inspect(a_call(False), bad) == []
    assert open_checks([]) is None
    with pytest.raises(ConfigError, match="no output check named sense"):
        open_checks(["sense"])
