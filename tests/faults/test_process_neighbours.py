"""`rollout.isolation: process`: whatever an attempt does to its process, the next episode meets none of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

import ajet.record
from tests.support.rollouts import workers_start_at_once
from tests.support.runs import run_here, start
from tests.support.waiting import until

pytestmark = pytest.mark.slow

WORKFLOW = """
import os, subprocess, sys, threading, time
from ajet import Workflow, WorkflowOutput

HERE = os.getcwd()

class Does(Workflow):
    async def execute(self, task, tuner):
        what = task.task.main_query
        client = tuner.as_raw_openai_sdk_client()
        await client.chat.completions.create(messages=[{"role": "user", "content": what}])
        more = {}
        if what == "forks" and os.fork() == 0:
            return WorkflowOutput(reward=0.0, metadata={"what": "the child's"})
        if what == "forks and exits" and os.fork() == 0:
            sys.exit(0)
        if what == "forks and raises" and os.fork() == 0:
            raise ValueError("the child's")
        if what == "changes":
            os.mkdir("elsewhere")
            os.chdir("elsewhere")
            os.environ["LEFT_BEHIND"] = "yes"
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            (open(os.path.join(HERE, "child"), "w")).write(str(child.pid))
        if what == "closes":
            sys.stdout.close()
        if what == "looks":
            more = {
                "folder": os.getcwd() == HERE, "variable": os.environ.get("LEFT_BEHIND"),
                "threads": [each.name for each in threading.enumerate() if each.daemon and "sleep" in each.name],
            }
        if what == "talks":
            for _ in range(200):
                print("p" * 10_000)
            more = {"long": "m" * 3_000_000, "deep": [["n" * 100_000]], "short": "kept"}
        if what == "shouts":
            raise ValueError("e" * 3_000_000)
        return WorkflowOutput(reward=1.0, metadata={"what": what, **more})
"""

YAML = """
ajet:
  model: {path: "embedded:tiny-tools"}
  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: {training: {file_path: tasks.jsonl}}}
  rollout:
    user_workflow: flow.py->Does
    isolation: process
    num_repeat: 1
    max_response_length_in_one_turn: 4
    max_model_len: 512
    episode_timeout: 500
    compute_madness_checklist: []
  debug: {debug_max_parallel: 1, debug_first_n_tasks: 100}
"""


def played(folder: Path, *deeds: str) -> tuple[list[dict[str, Any]], str]:
    """The recorded lines of one debug run, an episode for each deed, in order, one worker at a time; and what it
    printed."""
    (folder / "flow.py").write_text(WORKFLOW)
    (folder / "tasks.jsonl").write_text("".join(json.dumps({"main_query": deed}) + "\n" for deed in deeds))
    (folder / "x.yaml").write_text(YAML)
    with workers_start_at_once():
        done = run_here("--conf", folder / "x.yaml", "--exp-dir", folder / "runs")
    assert done.code == 0, done.printed
    (file,) = ajet.record.open("x", folder / "runs").path.glob("episodes/step-0.debug.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: deeds.index(row["task"]["main_query"])), done.printed


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_forked_children_that_come_back_and_a_closed_output_cost_no_neighbour(tmp_path: Path) -> None:
    deeds = ["forks", "looks", "forks and exits", "forks and raises", "looks too", "closes", "looks again"]
    rows, _ = played(tmp_path, *deeds)
    assert [row["metadata"].get("what") for row in rows] == deeds
    assert [(row["status"], row["verdict"]["reward"]) for row in rows] == [("completed", 1.0)] * len(deeds)


def test_what_an_attempt_says_is_bounded_and_says_how_much_is_missing(tmp_path: Path) -> None:
    rows, _ = played(tmp_path, "talks", "shouts")
    talks, shouts = rows
    assert all(len(json.dumps(row)) < 300_000 for row in rows)
    assert talks["metadata"]["short"] == "kept" and talks["metadata"]["long"].startswith("mmm")
    assert "more characters were cut" in talks["metadata"]["long"] and "long: 3000000" in talks["metadata"]["cut"]
    assert "deep" in talks["metadata"]["cut"] and "before this were cut" in talks["printed"]
    assert shouts["failure"]["kind"] == "ValueError" and "more characters were cut" in shouts["failure"]["message"]


def test_a_worker_that_an_attempt_left_changed_is_replaced(tmp_path: Path) -> None:
    (changes, looks), said = played(tmp_path, "changes", "looks")
    assert changes["status"] == looks["status"] == "completed"
    found = {name: looks["metadata"][name] for name in ("folder", "variable", "threads")}
    assert found == {"folder": True, "variable": None, "threads": []}
    assert "ajet replaces the process" in said and "LEFT_BEHIND" in said
    assert _ended(int((tmp_path / "child").read_text())), "a child in a session of its own outlived its worker"


OPENS = """
import os, time
from pathlib import Path
from ajet import Workflow, WorkflowOutput

def note(what):
    with open("opened", "a") as file:
        file.write(f"{what}\\n")

class Does(Workflow):
    async def execute(self, task, tuner):
        for name in ("session", "sandbox"):
            tuner.resources.callback(note, f"close {name}")
        note(f"open {os.getpid()}")
        Path("held").touch()
        time.sleep(600)  # deaf to any cancellation
        return WorkflowOutput(reward=1.0)
"""


def test_a_worker_whose_run_is_killed_closes_what_its_attempt_opened_and_ends(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(OPENS)
    (tmp_path / "tasks.jsonl").write_text('{"main_query": "q"}\n')
    (tmp_path / "x.yaml").write_text(YAML)
    run = start("--conf", "x.yaml", cwd=tmp_path, log=tmp_path / "log")
    try:
        held = tmp_path / "held"
        assert until(held.exists, run=run), (tmp_path / "log").read_text()
    finally:
        run.kill()
        run.wait()
    opened = tmp_path / "opened"
    assert until(lambda: len(opened.read_text().splitlines()) == 3), opened.read_text()
    first, *closed = opened.read_text().splitlines()
    assert closed == ["close sandbox", "close session"], "the last one first"
    assert _ended(int(first.removeprefix("open "))), "the worker outlived the run that started it"


def _ended(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE or process.wait(240) is None or pid == os.getpid()
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
