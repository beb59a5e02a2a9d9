"""A stand-in for a model that judges: NOT a model. It answers what ajet asks a judge, over the same protocol, by
regular expressions, so that the tutorial runs without a network. What it says shows how rubrics are made and trained
with, and nothing of how well a model judges.

    python stand_in.py rules.json --port 8097

rules.json: criteria, each with a pattern that is found in an answer that meets it. It knows no others.
"""

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MARK = re.compile(r"<([0-9a-f]{16})>\n")
LISTED = re.compile(r"^\d+\. (.*)$", re.MULTILINE)


class StandIn:
    """Of some rules."""

    def __init__(self, rules: dict[str, str]) -> None:
        self._rules = {text: re.compile(pattern, re.IGNORECASE | re.DOTALL) for text, pattern in rules.items()}

    def meets(self, criterion: str, answer: str) -> float | str:
        """1 or 0, or that it does not know the criterion."""
        rule = self._rules.get(criterion)
        return "undecided" if rule is None else float(rule.search(answer) is not None)

    def reply(self, text: str) -> dict[str, Any]:
        """To a question."""
        parts, around = marked(text)
        form = text.rpartition("Reply with one JSON object")[2]
        listed = LISTED.findall(around)
        if '"grades"' in form:
            grades = {str(number): self.meets(each, parts[-1]) for number, each in enumerate(listed, 1)}
            return {"reason": "by its rules", "grades": grades}
        if '"tiers"' in form:
            return self._ranked(text, parts, listed or self._asked_for(parts))
        if '"criteria"' in form:
            return {"reason": "by its rules", "criteria": [self._written(text, parts, listed)]}
        met = all(self.meets(each, parts[-1]) == 1.0 for each in self._asked_for(parts))
        return {"reason": "by its rules", "verdict": "correct" if met else "incorrect"}

    def _asked_for(self, parts: list[str]) -> list[str]:
        """The criteria that the reference names; without any, all."""
        return [each for each in self._rules if any(each in part for part in parts[1:2])] or list(self._rules)

    def _written(self, text: str, parts: list[str], listed: list[str]) -> str:
        """The next rule after those that were graded; one that comes out as the answers were judged, where it was told
        how its first ones came out."""
        names = list(self._rules)
        if not listed:
            return names[sum(map(ord, "".join(parts))) % len(names)]
        first = names.index(listed[0]) + 1
        labels = [float(found) for found in re.findall(r"judged (?:rank )?([\d.]+)", text)]
        better = (lambda one, two: one < two) if "judged rank" in text else (lambda one, two: one > two)
        answers = parts[-len(labels) :]
        for name in [*names[first:], *names[:first]]:
            grades = [float(self.meets(name, answer)) for answer in answers]
            alone = len(labels) == 1 and grades[0] == round(labels[0])
            if alone or (len(labels) > 1 and all(
                grades[i] >= grades[j] for i in range(len(labels)) for j in range(len(labels))
                if better(labels[i], labels[j])) and len(set(grades)) > 1):  # fmt: skip
                return name
        return names[first % len(names)]

    def _ranked(self, text: str, parts: list[str], criteria: list[str]) -> dict[str, Any]:
        labels = re.findall(r"\bAttempt (\w+):\n<", text)
        worth: dict[float, list[str]] = {}
        for label, part in zip(labels, parts[-len(labels) :], strict=True):
            answer = part.rpartition("It answered:\n")[2]
            met = sum(1.0 for each in criteria if self.meets(each, answer) == 1.0)
            worth.setdefault(met, []).append(label)
        return {"reason": "by its rules", "tiers": [worth[met] for met in sorted(worth, reverse=True)], "undecided": []}


def marked(text: str) -> tuple[list[str], str]:
    """The parts that stand between marks, and the text around them. The first mark's number is all marks'; another one
    is part of an answer."""
    mark = MARK.search(text)
    if mark is None:
        return [], text
    part = re.compile(rf"<{mark[1]}>\n(.*?)\n</{mark[1]}>", re.DOTALL)
    return part.findall(text), part.sub("", text)


class Chat(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        told = json.dumps(self.stand_in.reply(asked["messages"][-1]["content"]))
        message = {"role": "assistant", "content": told}
        self._send({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def do_GET(self) -> None:
        self._send({"data": [{"id": "stand-in"}]})

    def log_message(self, *_: Any) -> None:
        pass

    def _send(self, told: dict[str, Any]) -> None:
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    with open(options.rules, encoding="utf-8") as file:
        Chat.stand_in = StandIn(json.load(file))
    ThreadingHTTPServer(("127.0.0.1", options.port), Chat).serve_forever()
