"""Adversarial answers: the right reward of each, for the scorers that compare texts, numbers and choices."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.task_judge import Judge
from tests.support.scorer_calls import ask_scorer, open_scorer

pytestmark = pytest.mark.slow


@lru_cache(maxsize=32)
def judge_of(name: str, arguments: tuple[tuple[str, Any], ...] = ()) -> Judge:
    return open_scorer(name, **dict(arguments))


def reward(name: str, answer: str, truth: Any, /, *, arguments: dict[str, Any] | None = None, **row: Any) -> Any:
    return ask_scorer(judge_of(name, tuple((arguments or {}).items())), answer, {"answer": truth, **row}).reward


NUMERIC: list[tuple[str, str, float]] = [
    # in a sentence
    ("The answer is 72, in total.", "72", 1),
    ("She sold 72, so that is all.", "72", 1),
    ("there are 5 apples.", "5", 1),
    ("x = 5", "5", 1),
    ("x=5.", "5", 1),
    ("x1 = 5", "5", 1),
    ("=> 5", "5", 1),
    ("-> 5", "5", 1),
    ("<b>5</b>", "5", 1),
    ("**5**", "5", 1),
    ("(5)", "5", 1),
    ("[5]", "5", 1),
    ("5)", "5", 1),
    ("5;", "5", 1),
    ("Answer: 5", "5", 1),
    ("5, I repeat: 5", "5", 1),
    ("It costs $5.", "5", 1),
    ("US$5", "5", 1),
    ("It's 7!", "7", 1),
    ("about 5", "5", 1),
    ("a dozen (12)", "12", 1),
    ("third (3)", "3", 1),
    ("7 days a week", "7", 1),
    ("so it is 50 percent", "50%", 1),
    ("The distance is 5 km.", "5 km", 1),
    ("They walked 5 km, then slept.", "5000 m", 1),
    ("The answer is 1/2.", "0.5", 1),
    (r"so \frac{1}{2}", "0.5", 1),
    (r"about 3 \times 10^8 m/s", "300000000", 1),
    ("3e8", "300000000", 1),
    ("1,234,567 people", "1234567", 1),
    ("1 000", "1000", 1),
    ("5.0", "5", 1),
    ("9" * 50, "9" * 50, 1),
    ("1e400", "1e400", 1),
    ("minus 5 degrees", "-5", 1),
    ("x = -5", "-5", 1),
    ("The answer is −5.", "-5", 1),
    # other languages and scripts
    ("答案是72", "72", 1),
    ("总共72个", "72", 1),
    ("一共72。", "72", 1),
    ("７２", "72", 1),
    ("La respuesta es 5.", "5", 1),
    ("3万", "3", 0),
    ("不是5", "5", 0),
    ("至少5", "5", 0),
    ("5以上", "5", 0),
    ("第5", "5", 0),
    ("5月", "5", 0),
    ("no es 5", "5", 0),
    ("nicht 5", "5", 0),
    ("n'est pas 5", "5", 0),
    ("mindestens 5", "5", 0),
    ("al menos 5", "5", 0),
    # bounds
    (">5", "5", 0),
    ("≥5", "5", 0),
    (r"x \ge 5", "5", 0),
    ("x > 5", "5", 0),
    ("5 < x", "5", 0),
    ("5 > 3", "5", 0),
    ("at least 5", "5", 0),
    ("at most 5 apples", "5", 0),
    ("less than 5", "5", 0),
    ("more than $5", "5", 0),
    ("5+", "5", 0),
    ("over 5", "5", 0),
    ("up to 5", "5", 0),
    ("5 or more", "5", 0),
    ("no more than 5", "5", 0),
    ("5 and above", "5", 0),
    ("84 at most", "84", 0),
    ("84 apples at the very least", "84", 0),
    ("at a minimum 84", "84", 0),
    ("84 minimum", "84", 0),
    ("84 max", "84", 0),
    ("84 plus", "84", 0),
    ("84 upwards", "84", 0),
    ("upwards of 84", "84", 0),
    ("in excess of 84", "84", 0),
    ("greater than or equal to 84", "84", 0),
    ("84 or under", "84", 0),
    ("84 and over", "84", 0),
    ("bis zu 84", "84", 0),
    ("hasta 84", "84", 0),
    ("高于84", "84", 0),
    ("不低于84", "84", 0),
    ("84余人", "84", 0),
    ("84未満", "84", 0),
    ("84 이상", "84", 0),
    ("The maximum is 84.", "84", 1),
    # roughly
    ("~84", "84", 1),
    ("≈ 84", "84", 1),
    ("approx. 84", "84", 1),
    ("nearly 84", "84", 1),
    ("ungefähr 84", "84", 1),
    ("大约84", "84", 1),
    ("84左右", "84", 1),
    ("about 84.4", "84", 0),
    ("just under 84", "84", 0),
    # lists and ranges
    ("1, 2, 3, 4, 5, 42", "42", 0),
    ("4, 5, 6", "6", 0),
    ("4, 5, 6", "4", 0),
    ("either 41, or 42", "42", 0),
    ("1,2", "1", 0),
    ("1,2", "2", 0),
    ("5,5", "5", 0),
    ("10 5", "5", 0),
    ("5 or 6", "5", 0),
    ("5-6", "5", 0),
    ("5 to 6", "5", 0),
    ("5–6 apples", "5", 0),
    ("5 out of 10", "5", 0),
    ("5/10", "5", 0),
    ("Step 1: 5", "5", 0),
    ("I am 100% sure it is 5", "100", 0),
    ("5 ± 1", "5", 0),
    (r"5 \pm 1", "5", 0),
    # yet to be computed
    ("2 + 2", "2", 0),
    ("2 + 2", "4", 0),
    ("5 + 5", "5", 0),
    ("2 + 2 = 4", "4", 0),
    (r"\sqrt{16}", "16", 0),
    ("√16", "16", 0),
    (r"so \sqrt{16}", "16", 0),
    ("5^2", "5", 0),
    ("5²", "5", 0),
    ("5½", "5", 0),
    ("f(5)", "5", 0),
    ("|-5|", "-5", 0),
    ("log 5", "5", 0),
    ("5 squared", "5", 0),
    ("twice 5", "5", 0),
    ("5 thirds", "5", 0),
    ("5 hundredths", "5", 0),
    ("a third of 5", "5", 0),
    ("the square of 5", "5", 0),
    ("5 and a half", "5", 0),
    ("5 months", "5", 1),
    ("5!", "5", 0),
    ("5x", "5", 0),
    ("1.5x", "1.5", 0),
    ("5 + 3i", "5", 0),
    ("3D", "3", 0),
    (r"3 \times 10^8", "3", 0),
    # magnitudes, signs, units
    ("1.5 million", "1.5", 0),
    ("3 thousand", "3", 0),
    ("5 dozen", "5", 0),
    ("5 million dollars", "5", 0),
    ("$5 million", "5", 0),
    ("-5", "5", 0),
    ("minus 5", "5", 0),
    ("5 kg", "5 km", 0),
    ("so it is 50%", "50", 0),
    ("5%", "5", 0),
    ("5 percent", "5", 0),
    ("It grew by 5 per cent.", "5", 0),
    ("5", "5 percent", 0),
    ("__5__", "5", 1),
    # dates, times, places, versions
    ("May 5, 2024", "2024", 0),
    ("5 May", "5", 0),
    ("2024-01-05", "2024", 0),
    ("01/05/2024", "5", 0),
    ("12:30", "12", 0),
    ("7pm", "7", 0),
    ("5th", "5", 0),
    ("1st", "1", 0),
    ("3rd place", "3", 0),
    ("5.0.1", "5", 0),
    ("version 1.5.2", "5", 0),
    # denied, or nothing
    ("not 5", "5", 0),
    ("5 is wrong", "5", 0),
    ("5 isn't it", "5", 0),
    ("5?", "5", 0),
    ("Is it 5 apples?", "5", 0),
    ("≠5", "5", 0),
    ("x != 5", "5", 0),
    (r"x \ne 5", "5", 0),
    ("except 5", "5", 0),
    ("anything but 5", "5", 0),
    ("neither 5", "5", 0),
    ("除了5", "5", 0),
    ("非5", "5", 0),
    ("5以外", "5", 0),
    ("答案非常简单，是5", "5", 1),
    ("All except the first were sold, so 5.", "5", 1),
    ("± 5", "5", 0),
    ("5₂", "5", 0),
    ("5 млн", "5", 0),
    ("5 Mio.", "5", 0),
    ("5 milliards", "5", 0),
    ("五", "5", 0),
    ("five", "5", 0),
    ("9" * 5000, "5", 0),
]
CITIES = {"choices": ["Paris", "London", "Rome", "Berlin"]}
CHOICES: list[tuple[str, str, float]] = [
    ("A) Paris B) London C) Rome D) Berlin", "A", 0),
    ("A. Paris\nB. London", "A", 0),
    ("Paris, London, Rome, Berlin", "A", 0),
    ("(A) Paris (B) London (C) Rome (D) Berlin", "D", 0),
    ("A, B, C, D", "D", 0),
    ("All of A, B, C and D", "D", 0),
    ("A B C D", "A", 0),
    ("A B C D", "D", 0),
    ("Answer: A B C D", "A", 0),
    ("Answer: A; B", "A", 0),
    ("(A) (B)", "A", 0),
    ("Choices:\nA. Paris\nB. London\nC. Rome\nD. Berlin", "D", 0),
    ("Answer:\nA. Paris\nB. London", "A", 0),
    ("Choices:\nA. Paris\nB. London\nC. Rome\nD. Berlin\nAnswer: C", "C", 1),
    ("The answer is A. The answer is B.", "B", 0),
    ("A - Paris", "A", 1),
    ("A\nParis", "A", 1),
    ("A: Paris", "A", 1),
    ("It is Paris.", "A", 1),
    ("Paris or London", "A", 0),
    ("I think Paris is right, not London.", "A", 1),
    ("A) London", "A", 0),
    ("A) London", "B", 0),
    ("The answer is A. London", "A", 0),
    ("The answer is A) Paris.", "A", 1),
    ("A good question. It is Rome.", "C", 1),
    ("A city in France is the answer.", "A", 0),
    ("The answer is B) London, since Paris is in France", "B", 1),
    ("I am sure.", "A", 0),
    ("Ａ", "A", 1),
    ("（B）", "B", 1),
    ("答案：Ｃ", "C", 1),
    ("答案不是A，答案是B", "B", 1),
    ("答案不是A，答案是B", "A", 0),
    ("Not London but Paris", "A", 1),
    ("Not London but Paris", "B", 0),
    ("nicht London, sondern Paris", "A", 1),
    ("not Paris", "A", 0),
    ("Not Paris but Rome or Berlin", "C", 0),
    ("B. No wait, A.", "A", 1),
    ("B. No wait, A.", "B", 0),
    ("(B). Actually (A).", "A", 1),
    ("A, wait, also B", "A", 0),
    ("Between A and B, I prefer A.", "A", 1),
    ("A错误，B正确", "B", 1),
    ("故选B项", "B", 1),
    ("不选A", "A", 0),
    ("不应选A", "A", 0),
    ("别选A", "A", 0),
    ("不选B，选A", "A", 1),
    ("除了A", "A", 0),
    ("Everything except A", "A", 0),
    ("Anything other than A", "A", 0),
    ("All but A", "A", 0),
    ("Berlin (C)", "C", 0),
    ("Berlin (C)", "D", 0),
    ("Berlin (D)", "D", 1),
    ("A is the only option that works", "A", 1),
    ("【答案】B", "B", 1),
    ("【答案】AB", "B", 0),
    ("答案是巴黎", "A", 0),
    ("The answer is a dog", "A", 0),
]
TEXTS: list[tuple[str, dict[str, Any], str, Any, float]] = [
    ("contains", {}, "巴黎是首都", "巴黎", 1),
    ("contains", {}, "法国的首都是巴黎。", "巴黎", 1),
    ("contains", {}, "首都はパリです", "パリ", 1),
    ("contains", {}, "수도는 파리입니다", "파리", 1),
    ("contains", {}, "เมืองหลวงคือปารีส", "ปารีส", 1),
    ("contains", {}, "第3章", "3", 1),
    ("contains", {}, "伦敦是首都", "巴黎", 0),
    ("contains", {}, "Es ist Paris.", "paris", 1),
    ("contains", {}, "3.14", "3", 0),
    ("contains", {}, "3.14", "14", 0),
    ("contains", {}, "$3,000", "3", 0),
    ("contains", {}, "$3,000", "3,000", 1),
    ("contains", {}, "13", "3", 0),
    ("contains", {}, "1/3", "3", 0),
    ("contains", {}, "12:30", "12", 0),
    ("contains", {}, "It is 3.", "3", 1),
    ("contains", {}, "3, 4", "4", 1),
    ("contains", {}, "किताबें", "किताब", 0),
    ("contains", {}, "incorrect", "correct", 0),
    ("contains", {}, "-12", "12", 0),
    ("contains", {}, "x = −12.", "12", 0),
    ("contains", {}, "(-12)", "12", 0),
    ("contains", {}, "-12", "-12", 1),
    ("contains", {}, "covid-19", "19", 1),
    ("contains", {}, "10-12", "12", 1),
    ("contains", {}, "答案是１２", "12", 1),
    ("contains", {}, "ﾊﾟﾘです", "パリ", 1),
    ("contains", {}, "パリです", "ﾊﾟﾘ", 1),
    ("contains", {"ignore_case": False}, "Ｐaris", "Paris", 1),
    ("contains", {"ignore_case": False}, "ｐaris", "Paris", 0),
    ("contains", {"ignore_case": False}, "Cafe\u0301", "Café", 1),
    ("exact", {}, "Ｐａｒｉｓ", "paris", 1),
    ("exact", {}, "巴黎！", "巴黎!", 1),
    ("exact", {}, "㎏", "kg", 0),
    ("exact", {"normalize": "none"}, "Ｐ", "P", 0),
    ("exact", {"normalize": "squad"}, "the cafe\u0301", "Café", 1),
    ("f1", {}, "CAFE\u0301", "café", 1),
    ("f1", {}, "Ｐａｒｉｓ", "Paris", 1),
    ("f1", {}, "ﾊﾟﾘ", "パリ", 1),
    ("contains", {"whole_words": False}, "3.14", "3", 1),
    ("contains", {}, "CAFÉ", "café", 1),
    ("exact", {}, "ﬁ", "fi", 0),
    ("exact", {}, "ﬁ", "ﬁ", 1),
    ("exact", {}, "ÉCOLE", "école", 1),
    ("exact", {}, "ΟΔΟΣ", "οδος", 1),
    ("exact", {}, "巴黎", "巴黎", 1),
    ("exact", {}, "巴黎。", "巴黎", 0),
    ("exact", {"normalize": "squad"}, "巴黎。", "巴黎", 1),
    ("exact", {"normalize": "squad"}, "a", "The", 0),
    ("exact", {"normalize": "squad"}, "the", "The", 1),
    ("exact", {"normalize": "squad"}, "?", "!", 0),
    ("exact", {"normalize": "squad"}, "it’s", "its", 1),
    ("f1", {}, "a", "The", 0),
    ("f1", {}, "?", "!", 0),
    ("f1", {}, "the", "The", 1),
    ("f1", {}, "巴黎市", "巴黎", 0.8),
    ("f1", {}, "巴黎是首都", "伦敦", 0),
    ("f1", {}, "Paris。", "paris", 1),
    ("f1", {}, "black cat", "cat black", 1),
]


@pytest.mark.parametrize(("answer", "truth", "right"), NUMERIC)
def test_number_in_answer(answer, truth, right):
    assert reward("numeric", answer, truth) == right


@pytest.mark.parametrize(("answer", "truth", "right"), CHOICES)
def test_choice_in_answer(answer, truth, right):
    assert reward("multiple_choice", answer, truth, **CITIES) == right


@pytest.mark.parametrize(("name", "arguments", "answer", "truth", "right"), TEXTS)
def test_text_in_answer(name, arguments, answer, truth, right):
    assert reward(name, answer, truth, arguments=arguments) == pytest.approx(right)


ONE = [
    "{}",
    "({})",
    "{}.",
    "{})",
    "[{}]",
    '"{}"',
    "{}!",
    "**{}**",
    r"\boxed{{{}}}",
    r"\boxed{{\text{{{}}}}}",
    "The answer is {}",
    "The answer is ({}).",
    "The answer is {} because of this",
    "The answer is {} since it is big",
    "The answer is {} as stated",
    "The answer is {} and nothing else",
    "Answer: {}",
    "Answer: {} because",
    "Final answer: **{}**",
    "option {} because",
    "The correct option is {}.",
    "I choose {}",
    "I would go with {}.",
    "{} - because",
    "{}, because it is",
    "{} because it is",
    "{} is correct.",
    "{} is the right answer",
    "Therefore, {}.",
    "So it is {}.",
    "It must be {}.",
    "Definitely {}.",
    "答案是{}",
    "答案：{}。",
    "选{}",
    "我选择{}",
    "故选{}。",
    "答えは{}",
    "정답은 {}입니다",
    "La respuesta correcta es la {}.",
    "La réponse est {}.",
    "Die Antwort ist {}.",
    "La risposta è {}",
    "A resposta é {}",
    "Ответ: {}",
    "الجواب هو {}",
    "Let me think.\n\n{}",
    "### Answer\n{}",
    "The answer would have to be {}.",
    "The answer is, I think, {}.",
    "I believe the answer is {}, although it is close.",
    "Answer: {}\n\nExplanation: it is so.",
    "The answer is {}, not zero.",
    "My choice is {}.",
    "The answer to this question is clearly {}.",
    "Answer = {}",
    "So, the final answer is: $\\boxed{{{}}}$.",
]
"""Wordings that name one choice."""
TWO = [
    "{0} or {1}",
    "({0}) or ({1})",
    "{0} and {1}",
    "{0}, {1}",
    "{0}/{1}",
    "{0}; {1}",
    "{0} {1}",
    "({0})({1})",
    "{0}\n{1}",
    "The answer is {0} or {1}.",
    "Answer: {0}, {1}",
    "Answer: {0}\nAnswer: {1}",
    "The answer is {0}. The answer is {1}.",
    "Both {0} and {1}",
    "The answer is either {0} or {1}",
    "{0}. x\n{1}. y",
    "{0}) x {1}) y",
    "Answer: {0}) x, {1}) y",
    "答案是{0}或{1}",
    "答案：{0}、{1}",
    "I choose {0}, maybe {1}",
    "{0} is correct. {1} is correct.",
    "La respuesta es {0} o {1}",
    r"\boxed{{{0},{1}}}",
    "Option {0}. Option {1}.",
    "{0}{1}",
]
"""Wordings that name two."""
NOT_SECOND = [
    "The answer is {0} not {1}",
    "{0}, not {1}",
    "The answer is not {1} but {0}",
    "The answer is {1}. No, the answer is {0}.",
    "Option {1} is wrong. The answer is {0}.",
    "{1} is incorrect, {0} is correct.",
    "The answer is {0} rather than {1}",
    "The options are {1}) x and {0}) y. The answer is {0}.",
    "Option {1} seems close, but I choose {0}.",
    "Answer: {0}\n\n{1}) is not right because.",
    "答案不是{1}，答案是{0}",
    "The answer isn't {1}; the answer is {0}",
]
NONE = [
    "The answer is not {}",
    "The answer isn't {}.",
    "答案不是{}",
    "not {}",
    "{} is wrong.",
    "Is the answer {}?",
    "Die Antwort ist nicht {}",
    "La respuesta no es {}",
    "I don't choose {}",
    "The answer cannot be {}",
]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def named(answer: str, options: int) -> set[str]:
    """The letters for which an answer is right. 0 options: the row does not list them."""
    row: dict[str, Any] = {"choices": [f"text {number}" for number in range(options)]} if options else {}
    letters = LETTERS[: options or 10]
    return {letter for letter in letters if reward("multiple_choice", answer, letter, **row) == 1}


@pytest.mark.parametrize("wording", ONE)
def test_each_letter_is_read_alike(wording):
    for options, letters in ((4, "ABCD"), (0, "AEI")):
        for letter in letters:
            assert named(wording.format(letter), options) == {letter}, (letter, options)


@pytest.mark.parametrize("wording", NONE)
def test_denied_letter_is_not_named(wording):
    assert all(not named(wording.format(letter), 10) for letter in "ABI")


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(TWO + NOT_SECOND), st.sampled_from([0, 2, 3, 5, 10]))
def test_permuted_letters_permute_the_verdicts(data, wording, options):
    first, second = data.draw(st.permutations(LETTERS[: options or 10]))[:2]
    wanted = {first} if wording in NOT_SECOND else set()
    assert named(wording.format(first, second), options) == wanted


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 12),
    st.sampled_from([", ", " ", "\n", "; ", "/", " or ", " and "]),
    st.sampled_from(["{}", "({})", "{})", "{}."]),
    st.sampled_from(["", "Answer: ", "The answer is ", "答案：", "I choose "]),
)
def test_listing_all_options_is_never_right(options, separator, form, start):
    listed = separator.join(form.format(letter) for letter in LETTERS[:options])
    assert named(start + listed, options) == set()


@pytest.mark.parametrize("answer", ["2", "(2)", "The answer is 2.", "Answer: 2) two", "two"])
def test_labels_may_be_numbers(answer):
    row = {"choices": {"label": ["1", "2", "3"], "text": ["one", "two", "three"]}}
    assert reward("multiple_choice", answer, "2", **row) == 1
    assert reward("multiple_choice", answer, "1", **row) == 0


SCORERS = ["numeric", "multiple_choice", "contains", "f1", "exact", "math", "gaia", "regex"]
ODD = ["\ud800", "Paris \udfff", "\udc805", "9" * 5000, "9" * 5000 + ".5", "1/" + "9" * 5000, "1e" + "9" * 5000,
       "٣" * 5000, "\0", "\u202e5", "²" * 5000, r"\boxed{" + "9" * 5000 + "}", r"\boxed{\ud800}"]  # fmt: skip
HOSTILE = [
    "选A" * 33_000, "answer answer A " * 6000, "I choose A) x " * 7000, "(A" * 50_000, "A or " * 20_000, "A no " * 9000,
    "not A but B " * 8000, "1 a " * 2500, "a 1" * 3300, "1." * 5000, "-1" * 50_000, "a-" * 50_000, "<a" * 50_000,
]  # fmt: skip


@pytest.mark.parametrize("name", SCORERS)
def test_odd_answers_score_zero(name):
    """Lone surrogates and integers beyond the 4,300 digits that Python reads."""
    truth = "B" if name == "multiple_choice" else "7"
    assert [reward(name, odd, truth, **CITIES) for odd in ODD] == [0] * len(ODD)


@pytest.mark.parametrize("name", ["numeric", "multiple_choice", "contains", "f1", "exact"])
def test_hostile_texts_are_read_in_time(name):
    for text in HOSTILE:
        began = time.process_time()
        reward(name, text, "D" if name == "multiple_choice" else "5", **CITIES)
        assert time.process_time() - began < 3, text[:20]
