"""A scripted model that writes criteria and grades by them: what it says is a script, the server and all else is real.

Good answers thank and are short; of its criteria one is about each, one is always met, and one is the wrong way round.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.judge_fixtures import material

THANKS, SHORT, ALWAYS, WRONG = "It thanks the customer.", "It is short.", "It is a text.", "It is long."
RULES = {
    THANKS: lambda answer: float("thank" in answer.lower()),
    SHORT: lambda answer: float(len(answer) <= 30),
    ALWAYS: lambda answer: 1.0,
    WRONG: lambda answer: float(len(answer) > 30),
}
GOOD, RUDE = "Thank you for telling us.", "No."
LONG = "Thank you, thank you, and once more many thanks for all that you wrote."
EXAMPLES = [
    (GOOD, 1),
    (RUDE, 0.5),
    (LONG, 0.5),
    ("Thanks a lot!", 1),
    ("Go away at once and do not come back to us.", 0),
]


def criteria_in(text: str) -> list[str]:
    """Those that a question lists."""
    return [line.partition(". ")[2] for line in text.splitlines() if re.match(r"\d+\. ", line)]


def kind(asked: dict[str, Any]) -> str:
    """What is asked for."""
    text = asked["messages"][1]["content"]
    form = text.rpartition("Reply with one JSON object")[2]
    for name in ("grades", "tiers", "categories", "criteria"):
        if f'"{name}"' in form:
            return "revise" if name == "criteria" and "Write better ones" in text else name
    return "verdict"


def scripted(asked: dict[str, Any], low: float = 0.0, high: float = 1.0, first: tuple[str, ...] = (WRONG,)) -> str:
    """A reply; `first`: what is proposed before it is revised, in turn."""
    text, told, what = asked["messages"][1]["content"], material(asked), kind(asked)
    if what == "criteria":
        return json.dumps({"reason": "", "criteria": [first[sum(map(len, told)) % len(first)]]})
    if what == "revise":
        better = SHORT if len(told[-1]) > 30 else THANKS
        return json.dumps({"reason": "", "criteria": [better]})
    if what == "categories":
        count = len(criteria_in(told[0]))
        return json.dumps({"categories": [{"name": "Tone", "criteria": list(range(1, count + 1))}]})
    listed = criteria_in(text)
    if what == "grades":
        grades = {str(n): low + RULES[each](told[-1]) * (high - low) for n, each in enumerate(listed, 1)}
        return json.dumps({"reason": "by rule", "grades": grades})
    labels = re.findall(r"Attempt (\w+):", text)
    answers = [part.rpartition("It answered:\n")[2] for part in told[-len(labels) :]]
    worth = {label: sum(RULES[each](answer) for each in listed) for label, answer in zip(labels, answers, strict=True)}
    tiers = [
        [label for label in labels if worth[label] == value] for value in sorted(set(worth.values()), reverse=True)
    ]
    return json.dumps({"reason": "by rule", "tiers": tiers, "undecided": []})
