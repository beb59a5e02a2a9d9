"""Answers are found in whatever a model writes; nothing raises, and nothing takes long."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.task_judge.extraction import (
    answer_text,
    boxed_answer,
    extract_answer,
    find_boxes,
    hash_answer,
    strip_thoughts,
    tagged_answer,
)
from tests.support.cost_of_text import cost

PIECES = st.sampled_from(
    [r"\boxed{", r"\fbox {", "{", "}", r"\{", r"\}", "\\", "42", " ", "\n", "$", "\x08oxed{", "#### "]
    + ["<think>", "</think>", "<answer>", "</answer>"]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=25).map("".join))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\fbox{42}", "42"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{{42}}", "42"),
        (r"\boxed{ {{ 42 }} }", "42"),
        (r"\boxed{{1} + {2}}", "{1} + {2}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a\\}", r"a\\"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1} then \fbox{2}", "2"),
        (r"\boxed{1} and an empty \boxed{}", "1"),
        (r"\boxed{1} and one cut off \boxed{2", "1"),
        (r"\boxed{42}}", "42"),
        (r"\boxed {42}", "42"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{\fbox{1} + 2}", r"\fbox{1} + 2"),
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        (r"\boxed{2}<think>no, \boxed{1}</think>", "2"),
        (r"<think>\boxed{1}", None),
        (r"\boxed{1}</think>\boxed{2}", "2"),
        (r"<think>\boxed{1}</think>", None),
        (r"\boxed{42", None),
        (r"\boxed{{42}", None),
        (r"\boxed{}", ""),
        (r"\boxed{{}}", ""),
        (r"\boxed", None),
        ("", None),
        (None, None),
        ("no box, 42", None),
        ('"\boxed{42}" out of JSON', "42"),
        ("\fbox{42}", "42"),
        ([{"type": "text", "text": r"It is \boxed{42}."}], "42"),
        (str([{"type": "text", "text": r"It is \boxed{\frac{1}{2}}."}]), r"\frac{1}{2}"),
        ([{"type": "thinking", "thinking": r"\boxed{1}"}, {"type": "text", "text": r"\boxed{2}"}], "2"),
    ],
)
def test_boxed_answer(text, answer):
    assert boxed_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        (7, "7"),
        ([], "[]"),
        ({"type": "text", "text": "a"}, "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ("[{'type': 'text', 'text': 'a'}]", "a"),
        ('[{"type": "text", "text": "a", "cached": true}]', "a"),
        ("[{'type': 'text', 'text': 'a'}", "[{'type': 'text', 'text': 'a'}"),
        ("[{1: 2}]", "[{1: 2}]"),
        ([{"type": "tool_use", "id": "1", "name": "f", "input": {}}], ""),
    ],
)
def test_text_of(answer, text):
    assert answer_text(answer) == text


def test_other_forms():
    assert tagged_answer("<answer>1</answer> <ANSWER> 2 </ANSWER>") == "2"
    assert tagged_answer("<answer>1") is None
    assert tagged_answer("use <answer>, so <answer>1</answer> </answer>") == "1"
    assert hash_answer("48/2 = 24\n#### 1,234") == "1,234"
    assert hash_answer("none") is None
    assert extract_answer(r"<answer>\boxed{3}</answer>") == "3"
    assert extract_answer("<answer>3</answer>") == "3"
    assert extract_answer("#### 3") == "3"
    assert extract_answer("3") is None


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(TEXTS)
def test_no_text_raises_and_boxes_are_balanced_parts_of_it(text):
    for form in (boxed_answer, tagged_answer, hash_answer, extract_answer, answer_text):
        form(text)
    assert "<think>" not in strip_thoughts(text).lower()
    for content in find_boxes(text):
        assert content in strip_thoughts(text)
        assert content == content.strip()


CONTENT = st.recursive(
    st.text(alphabet="ab1+ ", min_size=1, max_size=5),
    lambda inner: st.one_of(inner.map("x{{{}}}y".format), st.tuples(inner, inner).map("".join)),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(CONTENT, TEXTS.filter(lambda text: "think" not in text), st.sampled_from([r"\boxed", r"\fbox"]))
def test_whatever_stands_before_it_the_last_box_is_found(content, before, box):
    answer = content.strip()
    if answer.startswith("{") or not answer:
        return
    assert find_boxes(f"{box}{{{content}}}") == [answer]
    closed = before.replace("{", "").replace("\\", "")
    assert boxed_answer(f"{closed} {box}{{{content}}} done") == answer


@settings(max_examples=100, deadline=None)
@given(st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=20)}), min_size=1, max_size=3))
def test_a_printed_block_list_reads_as_the_list(blocks):
    assert answer_text(str(blocks)) == answer_text(blocks)


@pytest.mark.slow
@pytest.mark.parametrize("piece", [r"\boxed{", "{", r"\boxed{}", "<think>", "</think>", "[{", "<answer>", "####", "{}"])
def test_long_hostile_text_does_not_take_long(piece):
    quarter, whole = (cost(extract_answer, piece * size) for size in (10_000, 40_000))
    assert whole < 8 * quarter + 0.05, "four times the text; a square would be sixteen times the cost"
