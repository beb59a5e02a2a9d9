"""What counts as an attempt's answer: as the row's `answer_schema` says, else `task_judge.answer_schema`.

Invariant: these names are the only ones; where none is named, the last words are taken as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ajet.schema.errors import BoundaryError
from ajet.task_judge.extraction import boxed_answer, tagged_answer, visible


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """A form of answers: how the model is told to give them, and how they are read."""

    told: str
    """To the model."""
    read: Callable[[str], str | None]
    """None: there is none in this text."""


FORMS = {
    "": AnswerForm("Answer when you know it.", visible),
    "answer": AnswerForm("Give your final answer as <answer>YOUR ANSWER</answer>.", tagged_answer),
    "boxed": AnswerForm("Give your final answer as \\boxed{YOUR ANSWER}.", boxed_answer),
}


def form_named(metadata: Mapping[str, Any], otherwise: str | None = None) -> str:
    """The name of a task's, by its metadata; "" for none. Raises BoundaryError for a name that is none."""
    named = metadata.get("answer_schema") or otherwise or ""
    if named not in FORMS:
        known = ", ".join(name for name in FORMS if name)
        raise BoundaryError(f"the task's answer_schema is {named!r}; there are {known}")
    return str(named)


def form_of(metadata: Mapping[str, Any], otherwise: str | None = None) -> AnswerForm:
    """The form itself. Raises BoundaryError."""
    return FORMS[form_named(metadata, otherwise)]
