"""`ajet eval`: played by training's path, over all tasks, continued where it was ended, compared task by task."""

from __future__ import annotations

import csv
import json
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ajet.cli import launcher
from ajet.config import Experiment
from ajet.engine.endpoint import EndpointEngine
from ajet.record.attempts import read_attempts
from ajet.task_reader.jsonl import JsonlReader
from ajet.workflow import ambient
from tests.support.ajet_process import ajet, start

WORKFLOW = """
import os
from ajet import Workflow, WorkflowOutput

class Asks(Workflow):
    async def execute(self, workflow_task, tuner):
        task = workflow_task.task
        if task.metadata["number"] == 13:
            raise ValueError("unlucky")
        with open("played", "a") as file:
            file.write(f"{task.metadata['number']}/{workflow_task.task_thread_index}\\n")
        if hold := os.environ.get("HOLD"):
            while task.metadata["number"] >= 4 and os.path.exists(hold):
                import asyncio
                await asyncio.sleep(0.01)
        client = tuner.as_raw_openai_sdk_client()
        messages = [{"role": "user", "content": task.main_query}]
        reply = await client.chat.completions.create(messages=messages)
        return WorkflowOutput(metadata={"answer": reply.choices[0].message.content})

def strict(task, output):
    if task.metadata["number"] == 3:
        raise KeyError("a judge that stumbles")
    return float(task.metadata["number"] == 2), task.metadata["number"] == 2

def right(task, output):
    good = output.metadata["answer"] == "yes"
    return float(good), good
"""


class Answers(BaseHTTPRequestHandler):
    """`strong` answers "yes" but to task 1, `weak` to even tasks only."""

    protocol_version = "HTTP/1.1"
    keys: list[str | None] = []

    def do_GET(self) -> None:
        self._say({"data": [{"id": "strong"}, {"id": "weak"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.keys.append(self.headers.get("Authorization"))
        number = int(body["messages"][-1]["content"].split()[-1])
        good = number != 1 if body["model"] == "strong" else number % 2 == 0
        message = {"role": "assistant", "content": "yes" if good else "no"}
        self._say({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def _say(self, value: dict) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}/v1"
    made.shutdown()
    made.server_close()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Held-out tasks only: nothing is trained, so no training task is asked for."""
    (tmp_path / "workflow.py").write_text(WORKFLOW)
    rows = [
        {
            "question": f"Is it task {number}",
            "id": f"t{number}",
            "number": number,
            "tag": "low" if number < 4 else "high",
        }
        for number in range(8)
    ]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "x.yaml").write_text(
        "ajet:\n"
        "  model: {path: 'embedded:tiny-tools'}\n"
        "  task_reader:\n"
        "    type: jsonl_dataset_file\n"
        "    jsonl_dataset_file:\n"
        "      validation: {file_path: held_out.jsonl}\n"
        "  rollout: {user_workflow: workflow.py->Asks}\n"
        "  task_judge: {judge_protocol: workflow.py->right}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What `ajet eval ARGUMENTS` prints, in this process."""
    with pytest.raises(SystemExit) as ended:
        launcher.main(["eval", *arguments])
    printed = capsys.readouterr()
    assert (ended.value.code or 0) == code, printed.out + printed.err
    return printed.out


def played(project: Path) -> list[str]:
    return sorted((project / "played").read_text().split())


@pytest.mark.slow
def test_two_endpoints_are_compared_and_the_tasks_that_flipped_are_named(project, server, capsys, monkeypatch):
    (project / "train.jsonl").write_text('{"question": "is 3 it task"}\n{"question": "Is it task 40"}\n')
    text = (project / "x.yaml").read_text()
    train = "jsonl_dataset_file:\n      training: {file_path: train.jsonl}\n      validation"
    (project / "x.yaml").write_text(text.replace("jsonl_dataset_file:\n      validation", train))
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-test")
    monkeypatch.setenv("COLUMNS", "140")
    models = ["--model", f"weak@{server}", "--model", f"strong@{server}"]
    out = run(capsys, "x.yaml", *models, "--csv", "a.csv", "--parquet", "a.parquet")
    assert "8 tasks, 1 attempt each, greedy" in out
    assert "1 of 8 validation tasks are also training tasks: 1 in another order (such as t3)" in out
    assert "50.0%" in out and "87.5%" in out and "  low " in out and "  high " in out
    assert "gained 4 tasks: t3, t5, t7" not in out and "gained 3 tasks: t3, t5, t7" in out and "lost" not in out
    assert "p = 0.250 (exact McNemar test): may be chance" in out and "unknown with one attempt per task" in out
    assert set(Answers.keys) == {"Bearer key-of-the-test"}

    rows = list(csv.DictReader((project / "a.csv").open()))
    assert len(rows) == 16 and {row["task_id"] for row in rows} == {f"t{number}" for number in range(8)}
    assert [row["success"] for row in rows[:4]] == ["True", "False", "True", "False"] and rows[0]["tags"] == "low"
    from pyarrow import parquet

    assert parquet.read_table(project / "a.parquet").to_pylist()[1]["reward"] == 0.0

    told = json.loads(run(capsys, "x.yaml", *models, "--json"))
    assert len(played(project)) == 16, "nothing is played twice"
    assert [model["pass@1"]["value"] for model in told["models"]] == [0.5, 0.875]
    assert told["known_from_training"]["mirrored"] == ["t3"]
    assert told["models"][0]["tags"]["low"]["pass@1"]["value"] == 0.5 and told["comparisons"][0]["gained"][0] == "t3"
    record = Path(told["models"][1]["record"])
    assert record.parent == project / "launcher_record" / "x" / "eval"
    for file in record.rglob("*"):
        assert not file.is_file() or b"key-of-the-test" not in file.read_bytes(), file


@pytest.mark.slow
def test_more_attempts_and_more_tasks_play_only_what_is_missing(project, server, capsys):
    model = ["--model", f"weak@{server}"]
    run(capsys, "x.yaml", *model, "--at-most", "2", "--temperature", "1")
    out = run(capsys, "--conf", "x.yaml", *model, "--repeat", "2", "--at-most", "3", "--temperature", "1")
    assert played(project) == ["0/0", "0/1", "1/0", "1/1", "2/0", "2/1"]
    assert "2 of 6 attempts are recorded already, 4 remain" in out and "pass@2" in out and "temperature 1" in out
    run(capsys, "x.yaml", *model, "--at-most", "2", "--temperature", "1", "--fresh")
    assert len(played(project)) == 8


@pytest.mark.slow
def test_changed_code_or_tasks_are_another_evaluation(project, server, capsys):
    arguments = ["x.yaml", "--model", f"weak@{server}", "--at-most", "1"]
    run(capsys, *arguments)
    (project / "workflow.py").write_text(WORKFLOW.replace('"user"', '"system"'))
    run(capsys, *arguments)
    (project / "more.jsonl").write_text(json.dumps({"question": "Is it task 0", "id": "t0", "number": 0}) + "\n")
    run(capsys, *arguments, "--tasks", "more.jsonl")
    assert len(played(project)) == 3 and len(list((project / "launcher_record/x/eval").iterdir())) == 3


@pytest.mark.slow
def test_other_judges_see_what_was_played(project, server, capsys):
    """On the same record: nothing is played again, and one at which a judge stumbles has failed under that judge."""
    arguments = ["x.yaml", "--model", f"strong@{server}", "--at-most", "4"]
    run(capsys, *arguments)
    judged = [*arguments, "--judge", "workflow.py->strict", "--judge", "workflow.py->right"]
    (told,) = json.loads(run(capsys, *judged, "--json", "--csv", "a.csv"))["models"]
    assert len(played(project)) == 4 and told["pass@1"]["value"] == 0.75
    strict, right = told["judges"].values()
    assert (strict["pass@1"]["value"], strict["failed"]) == (0.25, 1) and right["pass@1"] == told["pass@1"]
    rows = list(csv.DictReader((project / "a.csv").open()))
    assert [row["reward by strict"] for row in rows] == ["0.0", "0.0", "1.0", ""] and rows[0][
        "success by right"
    ] == "True"
    (project / "again.yaml").write_text("ajet: {task_judge: {judge_protocol: workflow.py->strict}}\n")
    shown = " ".join(run(capsys, *judged, "--judge", "again.yaml").split())
    assert " strict " in shown and "workflow.py->strict 3/4 0.333" in shown, "what each judge did"
    assert "as played, again.yaml 3 66.7% 0.400 (-0.40 to 0.83)" in shown, "a YAML's judge"
    assert "as played and workflow.py->strict differ in 1 episode; the largest differences" in shown


def test_the_reader_is_opened_once_however_many_models_are_played(project, server, capsys, monkeypatch):
    opened = []
    made = JsonlReader.__init__
    monkeypatch.setattr(JsonlReader, "__init__", lambda self, of: opened.append(made(self, of)))
    run(capsys, "x.yaml", "--model", f"strong@{server}", "--model", f"weak@{server}", "--at-most", "1")
    assert len(opened) == 1 and len(played(project)) == 2


def test_failures_count_and_are_said(project, server, capsys):
    rows = [{"question": f"Is it task {number}", "id": f"t{number}", "number": number} for number in (0, 13)]
    (project / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    none = "task_reader.jsonl_dataset_file.validation.file_path=null"
    out = run(capsys, "x.yaml", none, "--tasks", "two.jsonl", "--model", f"strong@{server}")
    assert "50.0%" in out and "1 failed" in out and "a failed attempt counts as unsolved" in out and "1/2" in out


@pytest.mark.parametrize("more", [(), ("rollout.engine=endpoint", "rollout.endpoint.model=weak")])
def test_down_model_server_is_named_before_play(project, server, capsys, more):
    url = "http://127.0.0.1:9/v1"
    named = ["--model", f"weak@{url}"] if not more else [*more, f"rollout.endpoint.base_url={url}"]
    with pytest.raises(SystemExit) as ended:
        launcher.main(["eval", "x.yaml", "--at-most", "2", *named])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and url in said and "start" in said and "ajet itself" not in said, said
    assert ("--model" in said) == (not more) and ("rollout.endpoint" in said) == bool(more)
    assert not list(project.glob("launcher_record/x/eval/*")), "no record of nothing"


@pytest.mark.slow
def test_attempts_that_the_server_failed_are_left_out_and_played_again(project, server, capsys, monkeypatch):
    monkeypatch.setattr(ambient, "foreign_hosts", set())

    def goes_away(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.close_connection = True

    monkeypatch.setattr(Answers, "do_POST", goes_away)
    gone = ["x.yaml", "--model", f"weak@{server}", "--at-most", "2", "rollout.max_retries=0"]
    out = run(capsys, *gone, code=1)
    assert "no result: no attempt was scored (exit code 1)" in out
    assert "2 attempts left out" in out and "2 at the model's server" in out and server in out
    assert "ajet itself" not in out
    assert "neither trained nor recorded" not in out, "it is the gateway that called there, and no agent"
    run(capsys, *gone, code=1)
    assert len(played(project)) == 4
    (folder,) = (project / "launcher_record/x/eval").iterdir()
    assert len(read_attempts(folder / "episodes/step-0.validation.jsonl")) == 2
    lines = (folder / "episodes/step-0.validation.jsonl").read_text().splitlines()
    assert len(lines) == 2, "none is recorded twice"


@pytest.mark.slow
def test_an_endpoint_that_begins_to_hang_is_named_and_its_attempts_are_no_wrong_answers(
    project, server, capsys, monkeypatch
):
    """Task 1 is answered wrongly, and counts; at tasks 2 and 3 the server takes the request and says nothing."""
    held = threading.Event()
    answers = Answers.do_POST

    def hangs(self):
        number = int(json.loads(self.rfile.peek(10_000))["messages"][-1]["content"].split()[-1])
        if number < 2:
            answers(self)
        else:
            asked.append(number)
            held.wait()

    asked: list[int] = []
    monkeypatch.setattr(Answers, "do_POST", hangs)
    arguments = ["x.yaml", "--model", f"strong@{server}", "--at-most", "4", "rollout.max_retries=0"]
    try:
        with pytest.raises(SystemExit):
            launcher.main(["eval", *arguments, "rollout.endpoint.timeout=0.5"])
    finally:
        held.set()
    printed = capsys.readouterr()
    out = printed.out
    assert sorted(asked) == [2, 3], "each is asked once: its client is told that asking again would be of no use"
    assert "50.0%" in out and "2/4" in out, "over the two that were answered"
    assert (
        "2 attempts left out" in out
        and "2 at the model's server" in out
        and f"{server} hangs: it accepted the request and sent" in out
    )
    words = " ".join((out + printed.err).split())
    assert words.count("raise rollout.endpoint.timeout if its replies take longer") == 1
    monkeypatch.setattr(Answers, "do_POST", answers)
    out = run(capsys, *arguments)
    assert "75.0%" in out and "2 of 4 attempts are recorded already, 2 remain" in out


def test_the_limit_of_an_endpoint_ends_before_the_attempt_does(tmp_path):
    """Whose own end would count against the model."""
    endpoint = {"base_url": "http://h/v1", "model": "m"}
    tree = {"ajet": {"rollout": {"engine": "endpoint", "episode_timeout": 100.0, "endpoint": endpoint}}}
    engine = EndpointEngine.from_config(Experiment.from_dict(tree, base=tmp_path).ajet)
    assert engine._server.silence == 80.0 and "rollout.episode_timeout" in str(engine._server.make_hang_error())


@pytest.mark.slow
def test_judges_that_cannot_be_asked_leave_attempts_out_and_one_that_fails_is_said(
    project, server, capsys, monkeypatch
):
    """A model that judges and is not there: ajet's own failure; a judge that raises at everything: nothing is known."""
    rows = [{"question": "Is it task 3", "id": "t3", "number": 3}]
    (project / "three.jsonl").write_text(json.dumps(rows[0]) + "\n")
    arguments = ["x.yaml", "--model", f"strong@{server}", "--tasks", "three.jsonl", "rollout.max_retries=0"]
    out = run(capsys, *arguments, "task_judge.judge_protocol=workflow.py->strict", code=1)
    assert "no result: no attempt was scored" in out and "a judge that stumbles" in out
    run(capsys, *arguments)
    out = run(capsys, *arguments, "--judge", "workflow.py->strict", code=1)
    assert "by workflow.py->strict: no result" in out
    told = json.loads(run(capsys, *arguments, "--judge", "workflow.py->strict", "--json", code=1))
    assert told["models"][0]["judges"]["workflow.py->strict"]["scored"] == 0


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "no run and no YAML to evaluate"),
        (["nobody"], "There is no run named nobody"),
        (["x.yaml", "--tasks", "none.jsonl"], "none.jsonl does not exist"),
        (["x.yaml", "--tasks", "."], ". is a folder"),
        (["x.yaml", "--model", "best"], "No run has a checkpoint best yet"),
        (["x.yaml", "--model", "a@http://h/v1", "--model", "a@http://h/v1"], "is the same model as"),
        (["x.yaml", "task_reader.jsonl_dataset_file.validation.file_path=null"], "has no validation tasks"),
        (["x.yaml", "--model", "SERVER"], "has 2 models: strong, weak"),
        (["x.yaml", "--model", "./no/model"], "no/model"),
    ],
)
def test_mistakes_are_named(project, server, capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        launcher.main(["eval", *(server if each == "SERVER" else each for each in arguments)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(project.glob("launcher_record/x/eval/*")), "no record of nothing"


@pytest.mark.slow
def test_killed_in_the_middle_the_same_command_goes_on(project, server, capsys, tmp_path_factory):
    """kill -9 while half of the tasks wait: those that had ended are on the disk and are not played again."""
    hold = tmp_path_factory.mktemp("hold") / "hold"
    hold.touch()
    arguments = ["eval", "x.yaml", "--model", f"strong@{server}"]
    process = start(*arguments, cwd=project, log=project / "log", HOLD=str(hold))
    ended = threading.Event()
    while not ended.wait(0.05):
        found = list(project.glob("launcher_record/x/eval/*/episodes/*.jsonl"))
        if found and len(found[0].read_text().splitlines()) == 4 and len(played(project)) == 8:
            break
        assert process.poll() is None, (project / "log").read_text()
    process.kill()
    process.wait()
    hold.unlink()
    out = run(capsys, *arguments[1:])
    assert "4 of 8 attempts are recorded already, 4 remain" in out and "87.5%" in out
    assert played(project) == sorted([f"{n}/0" for n in range(8)] + [f"{n}/0" for n in range(4, 8)])
    assert len(list((project / "launcher_record/x/eval").iterdir())) == 1


def test_one_at_a_time_plays_an_evaluation(project, server, capsys):
    from ajet.record.lock import RunLock

    arguments = ["x.yaml", "--model", f"strong@{server}", "--at-most"]
    run(capsys, *arguments, "1")
    (folder,) = (project / "launcher_record/x/eval").iterdir()
    lock = RunLock(folder)
    assert lock.take() is None
    with pytest.raises(SystemExit):
        launcher.main(["eval", *arguments, "2"])
    lock.release()
    assert "process" in capsys.readouterr().err


@pytest.mark.slow
def test_checkpoints_of_a_run_are_played_viewed_and_proven(tool_project, tmp_path, monkeypatch, capsys):
    """From the record alone, beside the project: the run's own tasks, its base and its last step, token by token."""
    root = tmp_path / "launcher_record"
    shutil.copytree(tool_project / "launcher_record", root)
    monkeypatch.chdir(tmp_path)
    common = ["plain", "--exp-dir", str(root), "--at-most", "4", "--repeat", "2", "--picture", str(tmp_path / "a.svg")]
    done = ajet("eval", *common, "--model", "base", "--model", "2", cwd=tool_project)
    assert done.returncode == 0, done.stdout
    assert "step-2 compared with base" in done.stdout and "two runs of one model differ by" in done.stdout
    assert "<svg" in Path("a.svg").read_text() and os.path.getsize("a.svg") > 5000
    records = sorted(Path("launcher_record/plain/eval").iterdir())
    assert len(records) == 2
    with pytest.raises(SystemExit) as ended:
        launcher.main(["prove", str(records[1])])
    printed = capsys.readouterr().out
    assert not ended.value.code and "8 episodes" in printed and "Proven: no wrong token." in printed, printed
    from ajet_viewer.library import Library

    rows = {row["name"]: row for row in Library(Path("launcher_record")).runs()}
    shown = rows[f"plain/eval/{records[1].name}"]
    assert shown["kind"] == "eval" and shown["state"] == "finished" and shown["held_out"]


@pytest.mark.slow
@pytest.mark.parametrize("split", ["training", "validation"])
def test_an_agent_is_talked_to_on_a_task_of_the_split_that_there_is(split, project, tool_project, capsys):
    yaml = (project / "x.yaml").read_text().replace("validation:", f"{split}:")
    (project / "x.yaml").write_text(yaml.replace("user_workflow", "max_response_length_in_one_turn: 4, user_workflow"))
    record = str(tool_project / "launcher_record")
    with pytest.raises(SystemExit) as ended:
        launcher.main(["chat", "plain", "--agent", "--conf", "x.yaml", "--prompt", "hello", "--exp-dir", record])
    out = capsys.readouterr().out
    assert not ended.value.code and "come from the task 't0'" in out and "user: hello" in out, out


@pytest.mark.slow
def test_tasks_that_teach_nothing_are_marked(project, server, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-test")
    text = (project / "x.yaml").read_text()
    (project / "x.yaml").write_text(text.replace("      validation: {file_path", "      training: {file_path"))
    asked = ["x.yaml", "--model", f"weak@{server}", "--training", "--repeat", "2", "--mark", "marked.jsonl"]
    said = run(capsys, *asked)
    assert "training can learn from 0 of 8 tasks. 8 tasks are in marked.jsonl" in said
    reader = [json.loads(line) for line in (project / "marked.jsonl").read_text().splitlines()]
    marks = [row["metadata"]["trial"]["mark"] for row in reader]
    assert marks == ["everybody", "nobody"] * 4
    assert reader[0]["metadata"]["trial"] | {"model": ""} == {
        "model": "", "mark": "everybody", "attempts": 2, "solved": 2, "rewards": [1.0, 1.0],
    }  # fmt: skip
    (project / "x.yaml").write_text(text.replace("held_out.jsonl", "marked.jsonl"))
    assert "8 tasks" in run(capsys, "x.yaml", "--model", f"weak@{server}", "--drop-marked", "--mark", "kept.jsonl")


def test_marks_by_rewards():
    from ajet.commands.evaluation.marks import mark_task
    from ajet.record.attempts import AttemptRecord

    def attempt(reward, success=False, judged=True, failure=""):
        return AttemptRecord("u", "t", 0, 0, "completed", reward, success, judged, False, failure)

    assert mark_task([attempt(1.0, True)]) == "unknown"
    assert mark_task([attempt(None), attempt(1.0, True)]) == "unknown"
    assert mark_task([attempt(0.2), attempt(0.7)]) == "teaches"
    assert mark_task([attempt(0.2), attempt(0.2)]) == "nobody"
    assert mark_task([attempt(0.2, judged=False), attempt(0.2, judged=False)]) == "everybody"
    assert mark_task([attempt(1.0, True), attempt(None, failure="agent: x: y")]) == "teaches"


def test_a_model_that_is_no_model_is_told_by_its_flag(project, capsys):
    (project / "empty").mkdir()
    with pytest.raises(SystemExit) as ended:
        launcher.main(["eval", "x.yaml", "--model", "./empty"])
    assert ended.value.code == 2 and "  where    --model ./empty\n" in capsys.readouterr().err
