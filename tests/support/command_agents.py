"""Command-line agents as programs: what tests of CommandWorkflow run."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet.config import Experiment
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.workflow import CommandWorkflow
from tests.support.workflow_fixtures import Scene, scene

ASK = """
    import json, os, sys, urllib.request

    def ask(text, base=os.environ["OPENAI_BASE_URL"], key=os.environ["OPENAI_API_KEY"]):
        body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": text}]}
        headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
        request = urllib.request.Request(base + "/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["choices"][0]["message"]["content"]
"""


def program(path: Path, *lines: str) -> Path:
    """A Python program that can `ask(text)` the model."""
    path.write_text(textwrap.dedent(ASK) + "\n" + "\n".join(textwrap.dedent(line) for line in lines) + "\n")
    return path


TASK = Task(main_query="What is 40 + 2?", task_id="sum", metadata={"answer": "42", "hint": "add"})


@contextmanager
def agent(folder: Path, *script: str, **section: Any) -> Iterator[tuple[Scene, Any]]:
    """A scene whose model says `script`, and a function that runs the command and answers its output."""
    tree = {"ajet": {}, "command_agent": {"folders": str(folder / "episodes"), **section}}
    config = Experiment.from_dict(tree, base=folder).config
    CommandWorkflow.check(config)
    with scene(*script, config=config) as played:

        def run(task: Task = TASK) -> WorkflowOutput:
            given = WorkflowTask(task=task, task_id=task.task_id, episode_uuid="0123456789abcdef")
            return asyncio.run(CommandWorkflow().execute(given, played.tuner))

        yield played, run
    assert list((folder / "episodes").iterdir()) == [] or section.get("keep", "never") != "never"


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def answer(output: WorkflowOutput) -> str:
    said: str = output.metadata["final_answer"]
    return said
