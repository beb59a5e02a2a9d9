"""The agent at work, and its users: an information desk that is asked when shops open.

Each question is a session of its own. Whoever got the right answer likes it, whoever got another says what would have
been right. `ajet observe` takes both in.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path

HOURS = {
    "bakery": "6", "butcher": "7", "florist": "8", "library": "9", "museum": "10", "cinema": "11", "bank": "12",
    "theatre": "5",
}  # fmt: skip
WORDS = (
    "When does the {} open?",
    "What time does the {} open?",
    "Tell me when the {} opens.",
    "The {}, when does it open?",
    "I want to go to the {}. When?",
)
FIRST = ("bakery", "butcher")
"""What the model is taught before it is deployed."""


def right(shop: str) -> str:
    """The answer."""
    return f"The {shop} opens at {HOURS[shop]}."


def first_rows() -> list[dict]:
    """What there is to learn from before anybody has asked anything."""
    return [
        {
            "messages": [
                {"role": "user", "content": WORDS[0].format(shop)},
                {"role": "assistant", "content": right(shop)},
            ]
        }
        for shop in FIRST
    ]


def ask(base_url: str, name: str, question: str) -> str:
    """The agent: one call of its model."""
    said = {"model": "desk", "messages": [{"role": "user", "content": question}], "max_tokens": 24}
    return post(f"{base_url}/chat/completions", said, {"x-ajet-session": name})["choices"][0]["message"]["content"]


def post(url: str, body: dict, headers: dict[str, str]) -> dict:
    head = {"content-type": "application/json", "authorization": f"Bearer {os.environ['AJET_API_KEY']}", **headers}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head), timeout=120) as reply:
        return json.load(reply)


def a_day(base_url: str, *, feedback: bool) -> dict[str, bool]:
    """Every shop is asked for in all words. Answers which questions were answered right."""
    found = {}
    questions = [(shop, at, words.format(shop)) for shop in HOURS for at, words in enumerate(WORDS)]
    for shop, at, question in questions:
        name = f"{shop}-{at}"
        said = ask(base_url, name, question)
        good = found[question] = said.strip() == right(shop)
        if feedback:
            told = {"liked": True} if good else {"liked": False, "corrected": right(shop)}
            post(base_url.removesuffix("/v1") + "/feedback", {"session": name, "end": True, **told}, {})
    return found


if __name__ == "__main__":
    if sys.argv[1] == "first":
        Path(sys.argv[2]).write_text("".join(json.dumps(row) + "\n" for row in first_rows()))
    else:
        day = a_day(sys.argv[1], feedback="--feedback" in sys.argv)
        print(f"right: {sum(day.values())} of {len(day)}")
        if Path("taught").exists():
            lines = Path("taught/tasks.validation.jsonl").read_text().splitlines()
            held_out = [json.loads(line)["main_query"] for line in lines]
            print(f"of those that nothing was learned from: {sum(day[each] for each in held_out)} of {len(held_out)}")
