"""The stand-in for a judge of the tutorials: what it finds, in time that grows with the length of an answer."""

from __future__ import annotations

import importlib.util
import json

from tests.docs.snippets import ROOT

FOLDER = ROOT / "tutorial"
LONG = 200_000
"""Characters, of which a pattern that goes over them once for each word would take minutes."""


def stand_in(name: str):
    path = FOLDER / "example_rubrics_judge" / "stand_in.py"
    spec = importlib.util.spec_from_file_location("stand_in", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, module.StandIn(json.loads((FOLDER / name / "rules.json").read_text()))


def test_a_question_is_about_what_stands_before_its_mark():
    _, made = stand_in("example_learn2ask")
    for said, met in (("Which colour?", 1.0), ("Really? Any color.", 0.0), ("A discolored one?", 0.0)):
        assert made.meets("It asks for the colour.", f"Clerk: {said}") == met
    assert made.meets("It asks for the day.", "Clerk: when? At what date") == 1.0
    for word in ("color ", "when "):
        many = "Clerk: " + word * (LONG // len(word))
        assert [made.meets(f"It asks for the {each}.", many) for each in ("colour", "day")] == [0.0, 0.0]
        assert 1.0 in [made.meets(f"It asks for the {each}.", many + "?") for each in ("colour", "day")]


def test_marks_of_another_number_are_part_of_an_answer():
    module, _ = stand_in("example_rubrics_judge")
    inside = "<fedcba9876543210>\n" * (LONG // 20) + "</fedcba9876543210>"
    text = f"Task:\n<0123456789abcdef>\nfirst\n</0123456789abcdef>\n<0123456789abcdef>\n{inside}\n</0123456789abcdef>."
    assert module.marked(text) == (["first", inside], "Task:\n\n.")
    assert module.marked("none") == ([], "none")
