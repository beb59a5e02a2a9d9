"""The golden requests: their data, and the comparison of what the gateway answers now with what was recorded.

`tests/gateway/golden/NAME.requests.yaml` has one request a line, NAME.answers.jsonl the recorded answers. Invariant:
the answers depend on nothing but the requests and the gateway; `make golden` shows what differs, and writes only with
`--accept`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[1] / "gateway" / "golden"
Line = dict[str, Any]
"""One line of an answer: `request` with status and headers, then `body` or `event` lines, then `sent` and `record`."""
FEATURES = ("plain", "tools", "thoughts", "n", "stops", "images", "errors", "retries", "cancellation", "logprobs",
            "schemas", "turns")  # fmt: skip


@dataclass(frozen=True)
class GoldenRequest:
    """One request as its file has it; tests/gateway/golden/README.md explains the fields."""

    name: str
    path: str | list[str]
    send: dict[str, Any] | None = None
    raw: str | list[str] | None = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    key: str = "own"
    key_in: str = "authorization"
    session: str = ""
    open: dict[str, Any] = field(default_factory=dict)
    model: str = "text"
    replies: list[dict[str, Any]] = field(default_factory=list)
    then: str = ""

    @property
    def is_streamed(self) -> bool:
        """True if the client asks for a stream."""
        return bool(self.send and self.send.get("stream")) or ":streamGenerateContent" in self.path

    def list_features(self, answer: Sequence[Line]) -> list[str]:
        """Return which of FEATURES the request exercises, by its data and its answer."""
        send, sent_text = self.send or {}, json.dumps([self.send, self.replies])
        found = {
            "tools": bool(send.get("tools")),
            "thoughts": any(word in sent_text for word in ("<think>", "reasoning_content", '"thinking"')),
            "n": "n" in send or "candidateCount" in sent_text,
            "stops": "stop" in send or "stop_sequences" in send or "stopSequences" in sent_text,
            "images": "image" in sent_text,
            "errors": answer[0].get("status", 200) >= 400 or any(_is_error(line.get("event")) for line in answer),
            "retries": bool({"idempotency-key", "x-stainless-retry-count"} & set(self.headers)),
            "cancellation": self.then in ("leave", "end"),
            "logprobs": "logprobs" in sent_text,
            "schemas": any(name in send for name in ("response_format", "text", "output_config", "output_format"))
            or "responseSchema" in sent_text,
            "turns": '"$' in sent_text,
        }
        return [name for name, is_there in found.items() if is_there] or ["plain"]


def _is_error(event: Any) -> bool:
    return isinstance(event, dict) and ("error" in event or event.get("type") in ("error", "response.failed"))


def load_requests(folder: Path = FOLDER) -> dict[str, list[GoldenRequest]]:
    """Return the requests of each file, by the file's name."""
    return {path.name.split(".")[0]: _read_file(path) for path in sorted(folder.glob("*.requests.yaml"))}


def _read_file(path: Path) -> list[GoldenRequest]:
    content = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    requests = []
    for line in content["requests"]:
        values = {"path": content.get("path"), "key_in": content.get("key_in", "authorization"), **line}
        values["headers"] = {**content.get("headers", {}), **line.get("headers", {})}
        if "send" in line:
            values["send"] = {**content.get("defaults", {}), **line["send"]}
        reply = values.pop("reply", [])
        listed = reply if isinstance(reply, list) else [reply]
        values["replies"] = [{"text": each} if isinstance(each, str) else each for each in listed]
        requests.append(GoldenRequest(**values))
    names = [request.name for request in requests]
    assert len(set(names)) == len(names), f"{path.name}: two requests have one name"
    return requests


def load_answers(name: str, folder: Path = FOLDER) -> dict[str, list[Line]]:
    """Return the recorded answer of each request of a file, by the request's name."""
    path = folder / f"{name}.answers.jsonl"
    answers: dict[str, list[Line]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        line = json.loads(text)
        if "request" in line:
            answers[line["request"]] = []
        answers[next(reversed(answers))].append(line)
    return answers


def write_answers(name: str, answers: Mapping[str, Sequence[Line]], folder: Path = FOLDER) -> None:
    """Record these answers."""
    lines = [json.dumps(line, ensure_ascii=False) for answer in answers.values() for line in answer]
    (folder / f"{name}.answers.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def diff_answers(
    name: str, recorded: Mapping[str, Sequence[Line]], answered: Mapping[str, Sequence[Line]]
) -> dict[str, str]:
    """Return a unified diff for each request whose answer is not the recorded one."""
    diffs: dict[str, str] = {}
    for request in dict.fromkeys([*answered, *recorded]):
        before, now = _spell_out(recorded.get(request, ())), _spell_out(answered.get(request, ()))
        if before != now:
            title = f"{name}: {request}"
            told = difflib.unified_diff(before, now, f"{title}, recorded", f"{title}, answered", n=2, lineterm="")
            diffs[request] = "\n".join(told)
    return diffs


def _spell_out(lines: Iterable[Line]) -> list[str]:
    return [text for line in lines for text in json.dumps(line, ensure_ascii=False, indent=1).splitlines()]


def count_features(
    requests: Mapping[str, Sequence[GoldenRequest]], answers: Mapping[str, Mapping[str, Sequence[Line]]]
) -> dict[str, dict[str, list[int]]]:
    """Return, for each file and feature, the numbers of whole and of streamed requests."""
    table = {name: {feature: [0, 0] for feature in FEATURES} for name in requests}
    for name, listed in requests.items():
        for request in listed:
            for feature in request.list_features(answers[name][request.name]):
                table[name][feature][request.is_streamed] += 1
    return table


def main(args: Sequence[str]) -> int:
    """Replay, print each difference and a summary; return 1 if an answer changed and was not accepted."""
    from tests.support.golden_replay import replay_requests

    parser = argparse.ArgumentParser(prog="make golden", description="Compare the gateway's answers with the recorded.")
    parser.add_argument("--accept", action="store_true", help="record the answers of now; commit them by themselves")
    parser.add_argument("--only", default="", help="a file's name, such as chat")
    parser.add_argument("--table", action="store_true", help="print how many requests each feature has in each file")
    options = parser.parse_args(args)
    requests = {name: listed for name, listed in load_requests().items() if options.only in ("", name)}
    answers = replay_requests(requests)
    changed = 0
    for name in requests:
        diffs = diff_answers(name, load_answers(name), answers[name])
        changed += len(diffs)
        print("\n\n".join(diffs.values()) + "\n" if diffs else "", end="")
        if options.accept:
            write_answers(name, answers[name])
    if options.table:
        for name, row in count_features(requests, answers).items():
            cells = [f"{feature} {whole}+{streamed}" for feature, (whole, streamed) in row.items()]
            print(f"{name} (whole+streamed): " + ", ".join(cells))
    count = sum(len(listed) for listed in requests.values())
    print(f"{changed} of {count} answers {'changed' if changed else 'changed: all are as recorded'}", end="")
    print("; recorded anew" if changed and options.accept else '; ARGS="--accept" records them' if changed else "")
    return 1 if changed and not options.accept else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
