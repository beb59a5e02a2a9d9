"""Tasks that a scripted server writes: the settings of the reader `data_generation`, and what it makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from ajet.config import Experiment
from ajet.schema.task import Task
from ajet.task_reader import open_reader
from tests.support.judge_fixtures import SECRET, JudgeServer, judge_server

SEA = "The Baltic Sea is brackish. Its mean depth is 55 metres. It freezes in part in most winters."
WORDS = [
    *("amber", "basalt", "copper", "diamond", "emerald", "feldspar", "garnet", "halite", "iolite", "jade", "kyanite"),
    *("lapis", "marble", "nickel", "opal", "pyrite", "quartz", "ruby", "slate", "topaz", "ulexite", "zircon"),
]


def counted(asked: dict[str, Any]) -> str:
    """As many tasks as were asked for, each about another stone."""
    prompt = asked["messages"][0]["content"]
    count = int(re.findall(r"exactly (\d+) in the list", prompt)[-1])
    start = sum(ord(letter) for letter in prompt) % len(WORDS)
    chosen = [WORDS[(start + number) % len(WORDS)] for number in range(count)]
    return json.dumps({"tasks": [{"query": f"How hard is {word}?", "answer": len(word)} for word in chosen]})


@contextmanager
def writing_server(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[JudgeServer]:
    """One that says what `counted` does, with a cache of its own and a document, in `folder`."""
    with judge_server(counted) as running:
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        monkeypatch.setenv("AJET_CACHE", str(folder / "cache"))
        monkeypatch.delenv("DASHSCOPE_API_KEY", raising=False)
        (folder / "sea.txt").write_text(SEA)
        yield running


def settings(*servers: JudgeServer, **more: Any) -> dict[str, Any]:
    """Of `ajet:`, where each of the servers writes."""
    section = {
        "models": [{"model": f"writer{number}", "base_url": each.url} for number, each in enumerate(servers)],
        "document_reader": {"document_path": ["sea.txt"]},
        "task_num": 6,
        **more,
    }
    return {"task_reader": {"type": "data_generation", "data_generation": section}}


def experiment(folder: Path, *servers: JudgeServer, **more: Any) -> Experiment:
    """The same, composed."""
    return Experiment.from_dict({"ajet": settings(*servers, **more)}, base=folder)


def read(*given: Any, split: Any = "train", **more: Any) -> list[Task]:
    """The tasks of an `experiment`."""
    return list(open_reader(experiment(*given, **more)).tasks(split))


def examples(folder: Path, *rows: str) -> dict[str, Any]:
    """Settings of example tasks, by default one."""
    (folder / "examples.jsonl").write_text("\n".join(rows or ['{"query": "What is 2 + 3?", "answer": "5"}']) + "\n")
    return {"query_reader": {"jsonl_dataset_file": {"training": {"file_path": "examples.jsonl"}}}}


def prompts(server: JudgeServer) -> list[str]:
    """What it was asked."""
    return [asked["messages"][0]["content"] for asked in server.seen if "messages" in asked]


@contextmanager
def log_lines(level: str) -> Iterator[list[str]]:
    """What is logged from that level on."""
    said: list[str] = []
    number = logger.add(lambda line: said.append(str(line).rstrip("\n")), format="{message}", level=level)
    try:
        yield said
    finally:
        logger.remove(number)
