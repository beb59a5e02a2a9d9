"""The tutorial of search and pages: what the library holds, what is demonstrated, an attempt with the real server, and
that it learns."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from ajet.config import load_experiment, resolve_reference
from ajet.schema.task import WorkflowTask
from ajet_mcp.agent import McpAgentWorkflow
from tests.support.tutorial_runs import TUTORIALS, learned, prints, taught
from tests.support.workflow_fixtures import scene

FOLDER = TUTORIALS / "example_deep_research"
CALL = '<tool_call>\n{{"name": "{}", "arguments": {{"{}": "{}"}}}}\n</tool_call>'


def of(reference: str) -> Any:
    return resolve_reference(reference, base=FOLDER)


def test_the_page_that_is_asked_for_has_the_answer_and_a_search_lists_it_among_others() -> None:
    reader, search, open_page = (
        of(name) for name in ("questions.py->Questions", "library.py->search", "library.py->open_page")
    )
    for task in (task for split in ("train", "validation") for task in reader(None).tasks(split)):
        item, market = task.task_id.split()
        names = search(market).splitlines()
        (about,) = (name for name in names if item in name)
        assert len(names) == 3 and open_page(about) == str(task.metadata["answer"])
    assert search("9") == "nothing found" and open_page("A fig") == "no such page"


def test_demonstrations_repeat_what_was_found_and_are_of_other_libraries() -> None:
    rows, open_page = of("questions.py->demonstrations")(), of("library.py->open_page")
    looked = [row["messages"] for row in rows if len(row["messages"]) > 3]
    right = ours = 0
    for _, asked, searching, found, opening, page, answer in looked:
        item, market = re.findall(r"the (\w+) cost in (\w)", asked["content"])[0]
        about = json.loads(opening["tool_calls"][0]["function"]["arguments"])["name"]
        assert json.loads(searching["tool_calls"][0]["function"]["arguments"]) == {"name": market}
        assert about in found["content"].splitlines() and answer["content"] == f"\\boxed{{{page['content']}}}"
        right += item in about
        ours += page["content"] == open_page(about)
    assert 0.28 < len(looked) / len(rows) < 0.32 and ours < len(looked) / 100
    assert 0.68 < right / len(looked) < 0.74, "(0.17 + 0.13 / 3) / 0.3"


def test_the_settings_are_what_the_demonstrations_were_shown() -> None:
    for name in ("sft.yaml", "deep_research.yaml"):
        experiment = load_experiment(FOLDER / name, backbone="local")
        experiment.require_ready()
    assert experiment.config.ajet.rollout.mcp_agent.system_prompt == of("questions.py->SYSTEM")


@pytest.mark.extra_slow
def test_an_attempt_searches_opens_and_answers_with_the_librarys_own_process() -> None:
    experiment = load_experiment(FOLDER / "deep_research.yaml", backbone="local")
    [task, *_] = of("questions.py->Questions")(None).tasks("validation")
    item, market = task.task_id.split()
    page = of("library.py->LIBRARY")[market][item][0]
    said = CALL.format("search", "name", market), CALL.format("open", "name", page), "\\boxed{1}"
    with scene(*said, config=experiment.config) as played:
        output = asyncio.run(McpAgentWorkflow().execute(WorkflowTask(task=task), played.tuner))
        capture = played.session.close()
    assert output.metadata["final_answer"] == "1" and output.metadata["mcp_agent"]["ended_by"] == "answer"
    results = [message["content"] for message in capture.messages if message["role"] == "tool"]
    assert page in results[0] and results[1] == str(task.metadata["answer"])
    told = [{name: tool["function"][name] for name in ("name", "description")} for tool in capture.tools[0]]
    assert told == [{name: tool["function"][name] for name in told[0]} for tool in of("questions.py->TOOLS")]


@pytest.mark.extra_slow
def test_it_learns(tmp_path: Path) -> None:
    prints(FOLDER / "questions.py", tmp_path / "demonstrations.jsonl")
    model = taught(FOLDER / "sft.yaml", tmp_path)
    held_out, rewards = learned(FOLDER / "deep_research.yaml", tmp_path, "deep_research", model)
    assert held_out[0] <= 4 / 18 and held_out[-1] >= 10 / 18, held_out
    assert mean(rewards[-4:]) > mean(rewards[:4]) + 0.1, rewards
